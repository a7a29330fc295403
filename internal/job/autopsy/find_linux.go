package autopsy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/host/procfs"
)

// lookLimit is how long the environment of a process may take to be read, and those of many
// without that of any one coming.
const lookLimit = 2 * time.Second

// Find returns the jobs whose workers run on this host, by run ID: those of this
// user, or all for root. A worker is a process with TORCHELASTIC_RUN_ID, RANK and
// LOCAL_RANK in its environment whose parent is not of the same rank.
func Find(ctx context.Context) ([]Job, error) {
	all, err := procfs.All()
	if err != nil {
		return nil, err
	}
	envs := environs(ctx, all, readEnviron)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	workers := map[string][]Target{}
	for pid, e := range envs {
		if p, ok := envs[e.parent]; ok && p.runID == e.runID && p.rank == e.rank {
			continue // a child of the worker's
		}
		workers[e.runID] = append(workers[e.runID], Target{PID: pid, Rank: e.rank, LocalRank: e.localRank})
	}
	var jobs []Job
	for _, id := range slices.Sorted(maps.Keys(workers)) {
		slices.SortFunc(workers[id], func(a, b Target) int {
			return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.PID, b.PID))
		})
		jobs = append(jobs, Job{id, workers[id]})
	}
	return jobs, nil
}

// WorkersOf returns the workers that an agent has started, itself or through a process
// of its own, and not those that its workers have.
func WorkersOf(ctx context.Context, agent int) ([]Target, error) {
	jobs, err := Find(ctx)
	var all, found []Target
	for _, job := range jobs {
		all = append(all, job.Workers...)
	}
	isWorker := func(pid int) bool { return slices.ContainsFunc(all, func(w Target) bool { return w.PID == pid }) }
	for _, w := range all {
		at := w.PID
		for left := 64; left > 0 && at != agent && (at == w.PID || !isWorker(at)); left-- {
			stat, err := procfs.Read(at)
			if err != nil {
				break
			}
			at = stat.Parent
		}
		if at == agent && at != w.PID {
			found = append(found, w)
		}
	}
	return found, err
}

// TargetOf returns the target that is a process, with the ranks in its environment
// and -1 where it has none. It fails if there is no such process.
func TargetOf(ctx context.Context, pid int) (Target, error) {
	t := Target{PID: pid, Rank: -1, LocalRank: -1}
	switch _, err := procfs.Read(pid); {
	case errors.Is(err, fs.ErrNotExist):
		return t, fmt.Errorf("there is no process %d on this host; give a worker's pid, which is in its log, or "+
			"name a job", pid)
	case err != nil:
		return t, fmt.Errorf("process %d: %w", pid, err)
	}
	short, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if e, ok := within(short, func() environ { return readEnviron(pid) }); ok {
		t.Rank, t.LocalRank = e.rank, e.localRank
	}
	return t, nil
}

// An environ is what a process' environment says about its job. What is not a worker, not
// ours to look at, or does not answer within lookLimit has no run ID.
type environ struct {
	runID           string
	rank, localRank int // -1 if there is none
	pid, parent     int
}

// environs looks at processes, all at the same time, since the kernel may hold up each look,
// and returns those with a run ID, by pid.
func environs(ctx context.Context, all []procfs.Stat, read func(pid int) environ) map[int]environ {
	found, envs := make(chan environ, len(all)), map[int]environ{}
	for _, stat := range all {
		go func() {
			e := read(stat.PID)
			e.pid, e.parent = stat.PID, stat.Parent
			found <- e
		}()
	}
	for range all {
		select {
		case e := <-found:
			if e.runID != "" {
				envs[e.pid] = e
			}
		case <-time.After(lookLimit):
			return envs
		case <-ctx.Done():
			return nil
		}
	}
	return envs
}

func readEnviron(pid int) environ {
	e := environ{rank: -1, localRank: -1}
	info, err := os.Stat(procPath(pid))
	if uid := os.Geteuid(); err != nil || uid != 0 && safeopen.Owner(info) != uid {
		return e
	}
	text, _ := procfs.Environ(pid)
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		name, value, _ := strings.Cut(string(entry), "=")
		rank, err := strconv.ParseUint(value, 10, 31)
		switch {
		case name == "TORCHELASTIC_RUN_ID":
			e.runID = value
		case err != nil:
		case name == "RANK":
			e.rank = int(rank)
		case name == "LOCAL_RANK":
			e.localRank = int(rank)
		}
	}
	if e.rank < 0 || e.localRank < 0 {
		e.runID = ""
	}
	return e
}
