package autopsy_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
)

// gloo is a job of which one rank does something else than the others.
const gloo = `
import os, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        time.sleep(1000)
        return i

def load():
    for batch in DataLoader(Slow(), num_workers=2):
        return batch

def train():
    if os.environ["RANK"] == "2": load()
    dist.all_reduce(torch.ones(3))

def main():
    dist.init_process_group("gloo")
    print("ready", flush=True)
    train()

main()
`

// startJob starts a job's ranks, and waits until they have met.
func startJob(t *testing.T, runID, script string, world int) []autopsy.Target {
	t.Helper()
	python := pypeer.Python(t)
	path := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	targets := make([]autopsy.Target, world)
	var all sync.WaitGroup
	for rank := range world {
		r := strconv.Itoa(rank)
		env := []string{"RANK=" + r, "LOCAL_RANK=" + r, "WORLD_SIZE=" + strconv.Itoa(world), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
			"OMP_NUM_THREADS=1", "TORCHELASTIC_RUN_ID=" + runID}
		targets[rank].Rank, targets[rank].LocalRank = rank, rank
		all.Go(func() {
			targets[rank].PID, _ = start(t, env, python, path)
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return targets
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// takeUntil looks at workers until the report is as it should be: a rank needs a
// moment from what it says to where it waits.
func takeUntil(t *testing.T, targets []autopsy.Target, cfg autopsy.Config, done func(*autopsy.Report) bool) *autopsy.Report {
	t.Helper()
	for late := time.Now().Add(testproc.Patience); ; {
		r := autopsy.Take(t.Context(), "no progress for 60 s", targets, cfg)
		if done(r) {
			return r
		}
		if time.Now().After(late) {
			t.Fatalf("it did not come to what is expected; the last report:\n%s", r.Text())
		}
	}
}

// The report names the rank for which the others wait, and where the processes are
// for which that one waits.
func TestOddRank(t *testing.T) {
	needPySpy(t)
	targets := startJob(t, "odd", gloo, 4)
	const want = "3 ranks in all_reduce (distributed_c10d.py:#), rank 2 in DataLoader.__next__ (dataloader.py:#)"

	r := takeUntil(t, targets, autopsy.Config{}, func(r *autopsy.Report) bool {
		children := r.Groups()[0].Children
		traced := !slices.ContainsFunc(r.Workers, func(w autopsy.Worker) bool { return w.Python.Source != "py-spy" })
		return traced && numbers(r.Summary()) == want && len(children) == 1 && strings.HasPrefix(children[0], "2 child processes") &&
			strings.Contains(children[0], "Slow.__getitem__ (train.py:")
	})
	if g := r.Groups()[0]; !g.Odd || !slices.Equal(g.Ranks, []int{2}) || g.From.Function != "load" {
		t.Errorf("the first group is %+v", g)
	}
	if g := r.Groups()[1]; g.Odd || !g.Collective || g.From.Function != "train" || len(g.Lines) != 1 {
		t.Errorf("the second group is %+v", g)
	}
}

// numbers makes line numbers equal.
func numbers(text string) string {
	var b strings.Builder
	for part := range strings.SplitAfterSeq(text, ":") {
		if i := strings.IndexByte(part, ')'); i > 0 && strings.Trim(part[:i], "0123456789") == "" {
			part = "#" + part[i:]
		}
		b.WriteString(part)
	}
	return b.String()
}

// Workers are found by their environment; their children are not workers.
func TestFind(t *testing.T) {
	needPySpy(t)
	runID := "find-" + strconv.Itoa(os.Getpid())
	script := strings.Replace(sleeper, "print(", "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); print(", 1)
	path := filepath.Join(t.TempDir(), "w.py")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	var want []autopsy.Target
	for _, rank := range []int{1, 0, 2} {
		r := strconv.Itoa(rank)
		pid, _ := start(t, []string{"TORCHELASTIC_RUN_ID=" + runID, "RANK=" + r, "LOCAL_RANK=" + r}, pypeer.Python(t), path)
		want = append(want, autopsy.Target{PID: pid, Rank: rank, LocalRank: rank})
	}
	want[0], want[1] = want[1], want[0]
	jobs, err := autopsy.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []autopsy.Target
	for _, j := range jobs {
		if j.RunID == runID {
			got = j.Workers
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("workers (-want +got):\n%s", diff)
	}
	target, err := autopsy.TargetOf(t.Context(), want[2].PID)
	if err != nil || target.Rank != 2 {
		t.Errorf("target of rank 2: %+v, %v", target, err)
	}
	target, err = autopsy.TargetOf(t.Context(), os.Getpid())
	if err != nil || target.Rank != -1 {
		t.Errorf("target of this process: %+v, %v", target, err)
	}
	if _, err := autopsy.TargetOf(t.Context(), 1<<30); err == nil || !strings.HasPrefix(err.Error(), "there is no process 1073741824 on this host; ") {
		t.Errorf("a process that is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := autopsy.Find(ctx); err == nil {
		t.Error("found something after the context was done")
	}
}
