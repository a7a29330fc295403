//go:build linux

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health"
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
		s.env = []string{envGate + "=" + agents[0].gate.path, envBoard + "=" + agents[0].board.path}
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
			agents := hosts(t, 3, "--preemption-signals TERM,SIGUSR1", func(int) string { return "" }, "catch "+sig.short, "exit 0")
			agents[0].await("ready 0", "ready 1", "ready 2")
			agents[1].signal(sig.sig)
			agents[0].await(sig.name+" at 0", sig.name+" at 1", sig.name+" at 2")
			for _, j := range agents {
				j.want(75).noneLeft(0).says("the job is preempted: host ", " received "+sig.name+" at ")
			}
		})
	}
}

// Where it is not asked for, a signal makes one host leave.
func TestNoPreemption(t *testing.T) {
	t.Parallel()
	agents := hosts(t, 2, "--preemption-signals USR1", func(int) string { return "" }, "catch TERM", "exit 0")
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
	timeout := func(host int) string { return fmt.Sprintf("--shutdown-timeout %d", []int{2, 1000}[host]) }
	agents := hosts(t, 2, "--preemption-signals TERM --autopsy-timeout 0", timeout, "ignore TERM", "ready", "hold")
	agents[0].await("ready 0", "ready 1")
	agents[1].signal(syscall.SIGTERM)
	agents[0].want(75)
	agents[1].signal(syscall.SIGTERM)
	agents[1].want(75).says("second signal; killing the workers")
}

// Also a host that waits at the exit barrier hears of it, and one whose round has not
// begun.
func TestPreemptionInOtherPhases(t *testing.T) {
	t.Parallel()
	t.Run("exit barrier", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(t.TempDir(), "health")
		at := func(host int) string { return []string{"--health-addr unix:" + socket, ""}[host] }
		agents := hosts(t, 2, "--preemption-signals TERM", at, "ready", "r0:exit 0", "hold")
		agents[0].await("ready 0", "ready 1")
		p := probe(t, socket)
		at0 := p.phase(health.ExitBarrier, false).Host.GroupRank == 0
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
		j := workers(t, muster(t), setup{}, fmt.Sprintf("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:%d --preemption-signals TERM --health-addr unix:%s", freePort(t), socket), "hold")
		p := probe(t, socket)
		p.phase(health.Rendezvous, false)
		p.end()
		j.signal(syscall.SIGTERM)
		j.want(75).says("the job is preempted")
	})
}

// Names that are no signals are refused.
func TestPreemptionSignalsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ value, says string }{{"TERM,NOSUCH", "'NOSUCH' is no signal"}, {"KILL", "KILL cannot be handled"}} {
		j := run(t, muster(t), setup{}, "--standalone --preemption-signals "+tt.value, "x.py").want(2).says(tt.says)
		if diff := cmp.Diff(1, strings.Count(j.errs(), "--preemption-signals")); diff != "" {
			t.Errorf("%s: %s", tt.value, j.console())
		}
	}
}
