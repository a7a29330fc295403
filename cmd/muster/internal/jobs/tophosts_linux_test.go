package jobs

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/muster-run/muster/health/jobstate"
)

// onHost is topState as the agent of another host has it.
func onHost(rank int, name string) *jobstate.State {
	s := topState()
	s.Host = jobstate.Host{Name: name, GroupRank: rank, Workers: 8}
	for i := range s.Workers {
		s.Workers[i].Rank += 8 * rank
		s.Workers[i].Host, s.Workers[i].GroupRank = name, rank
	}
	return s
}

// A soonJob does not know its state at first.
type soonJob struct {
	fixedJob
	asked *atomic.Int32
}

func (j soonJob) State(ctx context.Context) *jobstate.State {
	if j.asked.Add(1) == 1 {
		return nil
	}
	return j.fixedJob.State(ctx)
}

// An agent that does not know its state yet is asked again.
func TestStateComesSoon(t *testing.T) {
	j := job{addr: serve(t, "127.0.0.1:0", soonJob{fixedJob{onHost(0, "n0")}, new(atomic.Int32)})}
	if j.fetch(t.Context(), false); j.state == nil {
		t.Error(j.err)
	}
}

// Workers of all hosts stand in one table, sorted by rank.
func TestTopHosts(t *testing.T) {
	state := onHost(0, "n0")
	state = state.Shown(nil, jobstate.Others{Heard: map[int]jobstate.Heard{1: {State: onHost(1, "n\x1b[1m1")}}})
	for rank := 2; rank < 8; rank++ {
		state.Hosts = append(state.Hosts, jobstate.Host{Name: "away", GroupRank: rank, Problem: "no route"})
	}
	v := &topView{}
	v.take(state)
	got := shown(v, 100)
	for _, want := range []string{
		"8 hosts: n0* (8) n1 UNHEALTHY (8) away away", "\nhost 2: no route\n", "\nand 2 more hosts are missing\n",
		"  RANK  HOST  ", "\n  0     n0    ", "\n  12    n1    ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if at := strings.Index(got, "\n  7     n0 "); at < 0 || !strings.HasPrefix(got[at+1+strings.Index(got[at+1:], "\n"):], "\n  8     n1 ") {
		t.Errorf("rank 8 does not follow rank 7 in\n%s", got)
	}
	v.problems = []string{"no answer"}
	v.take(topState())
	if len(v.state.Workers) != 8 || len(v.problems) != 0 {
		t.Errorf("%d workers, %q", len(v.state.Workers), v.problems)
	}
}
