package health_test

import (
	"testing"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
)

// An event of another goroutine may be late, and does not take back a restart.
func TestLateEvent(t *testing.T) {
	o := &health.Observer{}
	job := &agent.Job{MaxRestarts: 3}
	o.Observe(agent.Event{Job: job, What: agent.Joining{}})
	o.Observe(agent.Event{Job: job, Restarts: 1, What: agent.RestartCounted{}})
	o.Observe(agent.Event{Job: job, Restarts: 0, What: agent.Suspected{What: "the workers hang"}})
	if s := o.State(t.Context()); s.Job.Restarts != 1 {
		t.Errorf("%d restarts, want 1", s.Job.Restarts)
	}
}
