// Command stress repeats the tests under a load of its own making, and counts what
// fails. The load is busy processes, writes to the disk, and pauses: it stops
// (SIGSTOP) one of the processes under test for 1 ms to 1 s, and continues it.
//
//	[MUSTER_SEQUENCE=N] go run ./internal/tools/stress [-runs 3] [-busy 8] [-writers 2] [-pausers 2] [flags of test.sh and packages]
//
// The programs that tests start have the race detector, and each run plays other random sequences of
// losses, the first from MUSTER_SEQUENCE on, which is chosen and printed where it is not set.
//
// Only test binaries and their descendants are paused, each held by a pidfd, and
// none that is stopped already, which a test did, or that has testproc.Unpaused in its
// environment. The few other tests that stop a process themselves may have it continued
// too early, if a pause was under way: run what fails there again with -pausers 0. Everything ends with this program, also on
// Ctrl-C.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/test/testproc"
)

// sequences is how many random sequences a run plays on each of three backends.
const sequences = 40

// written is how large the file of a writer gets.
const written = 128 << 20

func main() {
	if len(os.Args) == 2 && os.Args[1] == "spin" {
		spin()
		return
	}
	runs := flag.Int("runs", 3, "how often to run the tests")
	busy := flag.Int("busy", 8, "processes that do nothing but compute")
	writers := flag.Int("writers", 2, "files that are written again and again, of 128 MiB each")
	pausers := flag.Int("pausers", 2, "how many processes under test are paused at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := stress(ctx, *runs, *busy, *writers, *pausers, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "stress:", err)
	}
	if err != nil || failed {
		stop()
		os.Exit(1)
	}
}

// stress makes the load and runs the tests under it.
func stress(ctx context.Context, runs, busy, writers, pausers int, args []string) (failed bool, err error) {
	dir, err := os.MkdirTemp("", "muster-stress-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range busy {
		cmd := exec.CommandContext(ctx, self, "spin")
		if err := cmd.Start(); err != nil {
			return false, err
		}
		wg.Go(func() { _ = cmd.Wait() })
	}
	for i := range writers {
		wg.Go(func() {
			if err := write(ctx, filepath.Join(dir, fmt.Sprint(i))); err != nil {
				fmt.Fprintln(os.Stderr, "stress: one writer less:", err)
			}
		})
	}

	first, err := strconv.Atoi(cmp.Or(os.Getenv("MUSTER_SEQUENCE"), fmt.Sprint(rand.Int32())))
	if err != nil {
		return false, fmt.Errorf("MUSTER_SEQUENCE: %w", err)
	}
	count := map[string]int{}
	for i := range runs {
		began := time.Now()
		pauses, err := run(ctx, pausers, args, []string{fmt.Sprint("MUSTER_SEQUENCE=", first+i*sequences)}, count)
		if ctx.Err() != nil {
			return true, errors.New("stopped")
		}
		failed = failed || err != nil
		fmt.Printf("stress: run %d of %d: %s in %v, with %d pauses\n", i+1, runs, verdict(err), time.Since(began).Round(time.Second), pauses)
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		fmt.Printf("stress: %3d of %d: %s\n", count[name], runs, name)
	}
	return failed, nil
}

func verdict(err error) string {
	if err != nil {
		return "FAILED (" + err.Error() + ")"
	}
	return "passed"
}

// failure matches what go test says of a failed test, or package.
var failure = regexp.MustCompile(`(?m)^ *(?:--- FAIL: |FAIL\t|panic: test timed out)([^\t\n(]*)`)

// run runs the tests once and counts what failed in them.
func run(ctx context.Context, pausers int, args, env []string, count map[string]int) (pauses int, err error) {
	cmd := exec.CommandContext(ctx, "internal/tools/test.sh", args...)
	cmd.Env = append(append([]string{
		"MUSTER_E2E_LONG=1",
		fmt.Sprint("MUSTER_SEQUENCES=", sequences), "MUSTER_SEQUENCES_TOGETHER=5",
		"TEST_TIMEOUT=3h", // everything takes several times as long
	}, os.Environ()...), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us
	cmd.Cancel = func() error { return end(cmd.Process.Pid) }
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	paused, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	n := make([]int, pausers)
	for i := range n {
		wg.Go(func() { n[i] = pause(paused, cmd.Process.Pid) })
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		_, _ = os.Stdout.Write(line)
		if m := failure.FindSubmatch(line); m != nil {
			count[string(bytes.TrimSpace(m[1]))]++
		}
		if err != nil {
			break
		}
	}
	stop()
	wg.Wait()
	for _, k := range n {
		pauses += k
	}
	return pauses, cmd.Wait()
}

// tree returns a process' descendants. If tests is set, these are only those below a test
// binary, and these themselves, but none that has testproc.Unpaused, nor what is below it.
func tree(root int, tests bool) ([]procfs.Stat, error) {
	all, err := procfs.All()
	if err != nil {
		return nil, err
	}
	children := map[int][]procfs.Stat{}
	for _, s := range all {
		children[s.Parent] = append(children[s.Parent], s)
	}
	var found []procfs.Stat
	var walk func(pid int, below bool)
	walk = func(pid int, below bool) {
		for _, s := range children[pid] {
			in := below || isTest(s.PID)
			if tests && in && unpaused(s.PID) {
				continue
			}
			if in {
				found = append(found, s)
			}
			walk(s.PID, in)
		}
	}
	walk(root, !tests)
	return found, nil
}

// isTest reports whether a process is a test binary that go test has started.
func isTest(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && strings.HasSuffix(exe, ".test")
}

// end ends a command and all below it, first politely. What is below is found before
// that, while it still is.
func end(root int) error {
	below, err := tree(root, false)
	for _, s := range below {
		_ = syscall.Kill(s.PID, syscall.SIGTERM)
	}
	time.Sleep(5 * time.Second)
	for _, s := range below {
		if now, err := procfs.Read(s.PID); err == nil && now.Start == s.Start {
			_ = syscall.Kill(s.PID, syscall.SIGKILL)
		}
	}
	return errors.Join(err, syscall.Kill(root, syscall.SIGKILL))
}

// pause pauses one process after the other, until ctx is done.
func pause(ctx context.Context, root int) (n int) {
	for sleep(ctx, rand.N(500*time.Millisecond)) {
		under, err := tree(root, true)
		if err != nil || len(under) == 0 {
			continue
		}
		pid := under[rand.IntN(len(under))].PID
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// Whether it is the one that was found is read when fd holds its number.
		if s, err := procfs.Read(pid); err == nil && strings.ContainsRune("RSD", rune(s.State)) && slices.ContainsFunc(under, func(u procfs.Stat) bool {
			return u.PID == pid && u.Start == s.Start
		}) && unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0) == nil {
			n++
			sleep(ctx, time.Duration(float64(time.Millisecond)*math.Pow(1000, rand.Float64())))
			_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
		}
		unix.Close(fd)
	}
	return n
}

func unpaused(pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && slices.Contains(strings.Split(string(env), "\x00"), testproc.Unpaused)
}

// sleep reports whether the time has passed without ctx being done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// write writes a file again and again, each time to the disk.
func write(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for ctx.Err() == nil {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		for at := 0; at < written && ctx.Err() == nil; at += len(block) {
			if _, err := f.Write(block); err != nil {
				return err
			}
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// spin computes for as long as its parent lives.
func spin() {
	parent := os.Getppid()
	for x := uint64(1); os.Getppid() == parent; {
		for range 100_000_000 {
			x = x*6364136223846793005 + 1
		}
		_ = x
	}
}
