package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// preemption is what the agent's own stop means for the job; nil if that continues
// without this node.
func (a *Agent) preemption(cause error) *failure.Preemption {
	s, ok := errors.AsType[*process.SignalError](cause)
	if !ok || !slices.Contains(a.cfg.PreemptionSignals, s.Signal) {
		return nil
	}
	return &failure.Preemption{Host: a.cfg.Host, Signal: failure.Signal(s.Signal), Time: time.Now()}
}

// isToldLast reports whether a signal that has ended workers stops this agent, too: who sends it to all
// processes may come to the agent last.
func (a *Agent) isToldLast(ctx context.Context, exits ...process.Exit) bool {
	if !slices.ContainsFunc(exits, func(x process.Exit) bool {
		return x.StoppedBy == 0 && slices.Contains(a.cfg.PreemptionSignals, syscall.Signal(-x.Code))
	}) {
		return false
	}
	select {
	case <-ctx.Done():
		return true
	case <-time.After(a.cfg.PeerTimeout / 10):
		return false
	}
}

func (a *Agent) endPreempted(rec *peers.Record) {
	a.conclude(rendezvous.Outcome{Result: rendezvous.JobPreempted, Host: rec.Host, Cause: rec.Cause, Signal: rec.Signal,
		Time: rec.Time})
}

// conclude tells the agents that have no part in the round how the job ends.
func (a *Agent) conclude(o rendezvous.Outcome) {
	o.Cause = text.Line(o.Cause, peers.MaxText)
	a.cfg.Rendezvous.End(o)
}

func (a *Agent) concludeSuccess() {
	a.conclude(rendezvous.Outcome{Result: rendezvous.JobSucceeded, Host: a.cfg.Host})
}

// endedWithout is the end of a job that this host has had no part in: it waited for a place or for
// the next round. The host ends as the job did.
func (a *Agent) endedWithout(e *rendezvous.EndedError) (*Result, error) {
	runID := a.cfg.Rendezvous.RunID()
	r := &Result{State: Failed, Restarts: a.restarts.used, Left: true}
	host, cause := text.Line(e.Host, peers.MaxHost), text.Line(e.Cause, peers.MaxText)
	switch {
	case e.Result == rendezvous.JobPreempted && 0 < e.Signal && e.Signal <= 64:
		r.Preempted = &failure.Preemption{Host: host, Signal: failure.Signal(e.Signal), Time: e.Time}
		a.log.Warn("the job is preempted; this host had not joined it yet", "run_id", runID, "by", r.Preempted.String())
		a.emit(nil, JobPreempted{*r.Preempted})
		return r, nil
	case e.Result == rendezvous.JobSucceeded:
		a.log.Warn("the job has ended without needing this host, which was a spare", "run_id", runID)
		r.State = Succeeded
		return r, nil
	}
	return r, fmt.Errorf("the job with run ID %q failed before this host joined it; on host %s: %s",
		runID, host, cause)
}

// hurried reports whether a second signal has come (Config.Hurry).
func (a *Agent) hurried() bool {
	select {
	case <-a.cfg.Hurry: // never, if it is nil
		return true
	default:
		return false
	}
}
