package agent

import (
	"cmp"
	"path/filepath"
	"time"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/metrics"
)

// event returns what all events of this agent have in common. at may be nil,
// or not have its round yet.
func (a *Agent) event(at *attempt, restarts int, source events.Source, state events.State) events.Event {
	e := events.Event{
		Source:      source,
		State:       state,
		RunID:       a.cfg.Rendezvous.RunID(),
		Role:        a.cfg.Spec.Role,
		Hostname:    a.cfg.Host,
		RdzvBackend: a.cfg.Rendezvous.Backend(),
		Restarts:    restarts,
		EntryPoint:  filepath.Base(cmp.Or(a.cfg.Spec.Entrypoint, a.cfg.Spec.Func)),
	}
	if at != nil && at.round != nil {
		e.GroupRank, e.GroupWorldSize = &at.round.Rank, &at.round.WorldSize
	}
	return e
}

// recordStep records one step of starting an attempt. To torch's metrics the
// rendezvous includes the ranks.
func (a *Agent) recordStep(at *attempt, state events.State, began time.Time, err error) {
	if state == events.AssignWorkerRanks {
		a.metrics.Step(metrics.AssignWorkerRanks, began, err)
	} else {
		a.recordJoined(at, err)
	}
	if state == events.AssignWorkerRanks || err != nil {
		a.metrics.Step(metrics.StepRendezvous, a.measures.joining, err)
	}
	if err != nil {
		a.measureInitialized(err)
	}
	// torch tells the rank of the round before
	e := a.event(a.last, a.restarts, events.Agent, state)
	e.Duration = time.Since(began)
	if err != nil {
		e.RawError = err.Error()
	}
	a.cfg.Events.Record(e)
}

func (a *Agent) workerEvent(at *attempt, state events.State, localRank, pid int) events.Event {
	e := a.event(at, a.restarts, events.Worker, state)
	rank := at.ranks.Base + localRank
	e.GlobalRank, e.PID = &rank, pid
	e.LocalRank = localRank
	e.RoleRank, e.RoleWorldSize = at.ranks.RoleBase+localRank, at.ranks.RoleWorldSize
	return e
}

// recordEnd records how every worker of the last attempt ended, and the agent.
func (a *Agent) recordEnd(at *attempt, r *Result, began time.Time, err error) {
	took := time.Since(began)
	for i := range a.cfg.Spec.LocalWorldSize {
		exit, ended := at.exits[i]
		if !ended {
			continue
		}
		state := events.Succeeded
		var f *failure.ProcessFailure
		if r == nil || r.State != Succeeded {
			state = events.Terminated
			if r != nil && r.Failures[at.ranks.Base+i] != nil {
				f = r.Failures[at.ranks.Base+i]
				state = events.Failed
			}
		}
		e := a.workerEvent(at, state, i, exit.PID)
		e.RunTime = took
		if f != nil {
			e.ExitCode, e.RawError = &f.ExitCode, string(f.ErrorFileData())
		}
		a.cfg.Events.Record(e)
	}
	failed := err != nil || r == nil || r.State != Succeeded
	if r != nil && err == nil {
		a.metrics.Summary(a.cfg.Spec.Role, failed, a.cfg.MaxRestarts, a.cfg.MaxRestarts-a.restarts)
	}
	a.metrics.Step(metrics.Run, began, err)
	state := events.Succeeded
	if failed {
		state = events.Failed
	}
	a.metrics.State(string(state))
	e := a.event(at, a.restarts, events.Agent, state)
	e.RunTime = took
	if err != nil {
		e.RawError = err.Error()
	}
	a.cfg.Events.Record(e)
}
