//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/test/testproc"
)

// hosts starts the agents of a job of several hosts, all on this one; they share the
// board and the gate of the first. each gives an agent flags of its own.
func hosts(t *testing.T, n int, flags string, each func(host int) string, steps ...string) []*job {
	t.Helper()
	flags = fmt.Sprintf("--nnodes %d --nproc-per-node 1 --rdzv-backend c10d --rdzv-id job1 --rdzv-endpoint 127.0.0.1:%d %s ", n, freePort(t), flags)
	var agents []*job
	var s setup
	for i := range n {
		agents = append(agents, workers(t, muster(t), s, flags+each(i), steps...))
		s.env = testproc.Env(agents[0].board.Board, agents[0].gate, "")
	}
	return agents
}

// One agent is told to stop: all hosts' workers get the signal, all agents end with
// the status of a preempted job and say who asked.
func TestPreemption(t *testing.T) {
	t.Parallel()
	for _, sig := range []struct {
		name, short string
		sig         syscall.Signal
	}{{"SIGTERM", "TERM", syscall.SIGTERM}, {"SIGUSR1", "USR1", syscall.SIGUSR1}} {
		t.Run(sig.name, func(t *testing.T) {
			dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
			logs := func(host int) string { return "--event-log-handler file --log-dir " + dirs[host] }
			agents := hosts(t, 3, "--preemption-signals TERM,SIGUSR1", logs, "catch:"+sig.short, "exit:0")
			agents[0].await("ready 0", "ready 1", "ready 2")
			agents[1].signal(sig.sig)
			agents[0].await(sig.name+" at 0", sig.name+" at 1", sig.name+" at 2")
			for _, j := range agents {
				j.want(75).noneLeft(0).says("the job is preempted: host ", " received "+sig.name+" at ", "The report as JSON: ")
			}
			ranks := map[int]bool{}
			for _, dir := range dirs {
				p := wantPreempted(t, dir, sig.name, "")
				if len(p.Workers) != 1 || p.Workers[0].ExitCode != 0 || p.Workers[0].Killed || p.Workers[0].StoppedBy.String() != sig.name {
					t.Errorf("the workers are %+v", p.Workers)
				}
				ranks[p.Workers[0].Rank] = true
				if log := contents(t, one(t, dir, "*/events.jsonl")); strings.Count(log, `"name": "muster.job.preempted"`) != 1 || !strings.Contains(log, `"signal": "`+sig.name+`"`) {
					t.Errorf("the events are\n%s", log)
				}
			}
			if len(ranks) != 3 {
				t.Errorf("the reports are of ranks %v", ranks)
			}
		})
	}
}

// wantPreempted returns what report.json of the only attempt in a log directory says of
// the end, after `muster report` has said the same.
func wantPreempted(t *testing.T, dir, signal, cut string) *failure.Preemption {
	t.Helper()
	host, _ := os.Hostname()
	says := ": host " + host + " received " + signal + " at "
	if j := run(t, launcher{"muster report", []string{filepath.Join(bin, "muster"), "report"}}, setup{}, dir).want(0); !strings.Contains(j.out(), says) {
		t.Errorf("the report lacks %q:\n%s", says, j.out())
	}
	var report failure.Report
	readJSON(t, filepath.Join(dir, "*", "attempt_0", "report.json"), &report)
	p := report.Preempted
	if p == nil || p.Host != host || p.Signal.String() != signal || p.CutShort != cut || p.ExitStatus != 75 || !strings.HasPrefix(report.Cause, "preempted: host "+host+" received "+signal) {
		t.Fatalf("the report says %q, %+v", report.Cause, p)
	}
	return p
}

// Where it is not asked for, a signal makes one host leave.
func TestNoPreemption(t *testing.T) {
	t.Parallel()
	holder := func(host int) string { return fmt.Sprint("--rdzv-conf is_host=", host == 0) } // the other one leaves
	agents := hosts(t, 2, "--preemption-signals USR1", holder, "catch:TERM", "exit:0")
	agents[0].await("ready 0", "ready 1")
	agents[1].signal(syscall.SIGTERM)
	agents[1].want(1).saysNot("preempted")
	agents[0].signal(syscall.SIGTERM)
	agents[0].want(1).saysNot("preempted")
}

// A second signal cuts the grace, here; workers that do not heed the first are killed
// elsewhere when their time is over.
func TestPreemptionCutShort(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	timeout := func(host int) string {
		return fmt.Sprintf("--shutdown-timeout %d --log-dir %s", []int{2, 1000}[host], dirs[host])
	}
	agents := hosts(t, 2, "--preemption-signals TERM --autopsy-timeout 0", timeout, "ignore:TERM", "ready", "hang")
	agents[0].await("ready 0", "ready 1")
	agents[1].signal(syscall.SIGTERM)
	agents[0].want(75)
	agents[1].signal(syscall.SIGTERM)
	agents[1].want(75).says("second signal; killing the workers")
	for i, cut := range []string{"end of the grace period", "second signal"} {
		p := wantPreempted(t, dirs[i], "SIGTERM", cut)
		if len(p.Workers) != 1 || !p.Workers[0].Killed || p.Workers[0].Signal != failure.Signal(syscall.SIGKILL) || p.Workers[0].StoppedBy != failure.Signal(syscall.SIGTERM) {
			t.Errorf("the workers are %+v", p.Workers)
		}
		agents[i].says("killed at the " + cut)
	}
}

// Also a host that waits at the exit barrier hears of it, and one whose round has not
// begun.
func TestPreemptionInOtherPhases(t *testing.T) {
	t.Parallel()
	t.Run("exit barrier", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(t.TempDir(), "health")
		at := func(host int) string { // addresses decide who is node 0
			return []string{"--local-addr 127.0.0.1 --health-addr unix:" + socket, "--local-addr 127.0.0.2"}[host]
		}
		agents := hosts(t, 2, "--preemption-signals TERM", at, "ready", "r0:exit:0", "hang")
		agents[0].await("ready 0", "ready 1")
		p := probe(t, socket)
		at0 := p.phase("exit barrier", false).Host.GroupRank == 0
		p.end()
		if !at0 {
			t.Fatal("the first agent is not node 0")
		}
		agents[1].signal(syscall.SIGTERM)
		for _, j := range agents {
			j.want(75)
		}
	})
	t.Run("rendezvous", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(t.TempDir(), "health")
		j := workers(t, muster(t), setup{}, fmt.Sprintf("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:%d --preemption-signals TERM --health-addr unix:%s", freePort(t), socket), "hang")
		p := probe(t, socket)
		p.phase("rendezvous", false)
		p.end()
		j.signal(syscall.SIGTERM)
		j.want(75).says("the job is preempted")
	})
}

// Names that are no signals are refused.
func TestPreemptionSignalsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ value, says string }{{"TERM,NOSUCH", "'NOSUCH' is not a signal"}, {"KILL", "KILL cannot be handled"}} {
		j := run(t, muster(t), setup{}, "--standalone --preemption-signals "+tt.value, "x.py").want(2).says(tt.says)
		if diff := cmp.Diff(1, strings.Count(j.errs(), "--preemption-signals")); diff != "" {
			t.Errorf("%s: %s", tt.value, j.console())
		}
	}
}
