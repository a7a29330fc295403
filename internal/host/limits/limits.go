// Package limits reports whether this process may have what n workers need: descriptors
// for their files, and processes of the user.
package limits

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// What n workers need of this process: at its peak a worker costs a pidfd, a cgroup, a follower and two
// filters for its output, and connections to the stores and for timers; and the agent itself some.
const (
	filesPerWorker = 12
	filesOfAgent   = 64
	// A worker is one process at least; the agent, the guard and Go's threads are
	// some.
	processesOfAgent = 24
)

// Check reports whether this process may have n workers. It raises the soft limits if that
// is enough. The error lists every limit that is too low.
func Check(n int) error {
	return errors.Join(checkFiles(n, filesFor(n), ""), checkProcesses(n))
}

func filesFor(n int) uint64 { return uint64(n)*filesPerWorker + filesOfAgent }

// CheckConnections reports whether this process may have the files of n workers and, beside
// them, the connections of the stores that it holds.
func CheckConnections(n, connections int) error {
	return checkFiles(n, filesFor(n)+uint64(connections),
		fmt.Sprintf(", with %d connections to the job's stores, which this host holds", connections))
}

func checkFiles(n int, need uint64, note string) error {
	return checkLimit("open files (ulimit -n)", unix.RLIMIT_NOFILE, need, n, note)
}

// Connections is how many connections leave this process the descriptors that n workers
// need, or half of all that it may have.
func Connections(n int) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur - min(filesFor(n), limit.Cur/2))
}

// checkProcesses counts what the user runs already, but only where the limit is
// near: it holds for threads, and root is exempt.
func checkProcesses(n int) error {
	need := uint64(n) + processesOfAgent
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil || os.Geteuid() == 0 {
		return nil
	}
	running := 0
	if all, err := threads(); err != nil || uint64(all)+need > limit.Cur {
		running, _ = threadsOf(os.Getuid())
	}
	note := ""
	if running > 0 {
		note = fmt.Sprintf(", on top of the %d threads and processes that the user has already", running)
	}
	return checkLimit("processes (ulimit -u)", unix.RLIMIT_NPROC, need+uint64(running), n, note)
}

func checkLimit(what string, resource int, need uint64, workers int, note string) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return fmt.Errorf("limit of %s: %w", what, err)
	}
	if limit.Cur >= need {
		return nil
	}
	if limit.Max < need {
		return fmt.Errorf("the limit of %s is %d, but %d workers need %d%s; raise the hard limit, or start fewer workers",
			what, limit.Max, workers, need, note)
	}
	limit.Cur = need
	if err := unix.Setrlimit(resource, &limit); err != nil {
		return fmt.Errorf("raise the limit of %s to %d: %w", what, need, err)
	}
	return nil
}
