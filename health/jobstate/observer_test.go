package jobstate_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/rendezvous"
)

// An event of another goroutine may be late, and does not take back a restart.
func TestLateEvent(t *testing.T) {
	o := &jobstate.Observer{}
	job := &agent.Job{MaxRestarts: 3}
	o.Observe(agent.Event{Job: job, What: agent.Joining{}})
	o.Observe(agent.Event{Job: job, Restarts: 1, What: agent.RestartCounted{}})
	o.Observe(agent.Event{Job: job, Restarts: 0, What: agent.Suspected{What: "the workers hang"}})
	if s := o.State(t.Context()); s.Job.Restarts != 1 {
		t.Errorf("%d restarts, want 1", s.Job.Restarts)
	}
}

// Hosts that come or go, and what a hang is about, are on the timeline.
func TestMomentsOnTimeLine(t *testing.T) {
	o := &jobstate.Observer{}
	job := &agent.Job{}
	o.Observe(agent.Event{Job: job, What: agent.Joining{}})
	o.Observe(agent.Event{Job: job, What: agent.Decided{Change: "node lost: b (node 1)", Again: true, Rejoining: true}})
	o.Observe(agent.Event{Job: job, What: agent.Decided{Change: "closed: c"}})
	o.Observe(agent.Event{Job: job, What: agent.EvidenceTaken{Summary: "rank 3 differs"}})
	var got []string
	for _, m := range o.State(t.Context()).Timeline {
		got = append(got, m.Kind+": "+m.What+m.Why)
	}
	if want := []string{"phase: waiting for the hosts of the next round", "hosts: node lost: b (node 1)", "failure: what the workers didrank 3 differs"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A live change is on the timeline from the rest of the workers on, and says how many ranks continue.
func TestLiveOnTimeLine(t *testing.T) {
	o := &jobstate.Observer{}
	job := &agent.Job{LocalWorldSize: 2}
	ranks := rendezvous.Ranks{WorldSize: 6}
	for _, what := range []any{
		agent.WorkersStarted{}, agent.WorkersStarted{Live: true}, agent.Reconfigured{World: 6},
		agent.Resting{Why: "rank 1 on b: killed by SIGKILL"}, agent.WorkersStarted{Live: true}, agent.Reconfigured{World: 5, Stayed: 5},
	} {
		o.Observe(agent.Event{Job: job, Ranks: ranks, What: what})
	}
	var got []string
	for _, m := range o.State(t.Context()).Timeline {
		got = append(got, fmt.Sprint(m.Kind, " ", m.Ranks, " ", m.Stayed, " ", m.Why))
	}
	if want := []string{"phase 6 0 ", "phase 0 0 ", "live 6 0 ", "live 0 0 rank 1 on b: killed by SIGKILL", "phase 0 0 ", "live 5 5 "}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
