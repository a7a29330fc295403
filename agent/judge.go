package agent

import (
	"cmp"
	"context"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/rendezvous"
)

// A judge has the policy's verdicts, and what follows from them for the next round. Only the goroutine of Run has it.
type judge struct {
	a       *Agent
	engine  *policy.Engine   // nil without a policy
	backOff *policy.Decision // what to wait for before the next round; nil for nothing
	pause   time.Duration    // and how long to wait in any case
	files   prober
}

// consult asks the policy what follows from news of a failure or of a lost host; "" if it says
// nothing. What it says of a failure stands for the rest of the attempt (status.verdict).
func (j *judge) consult(at *attempt, n news) decide.Verdict {
	switch {
	case j.engine == nil:
		return ""
	case n.ev.IsChange() && at.status.phase != decide.Failing && n.change.Kind == rendezvous.NodeLost &&
		j.a.cfg.Policy.Names(failure.CauseHostLost):
		at.status.lostHost = cmp.Or(n.host, n.change.Node)
		at.status.verdict = j.decide(at, j.lossOf(at, at.status.lostHost))
	case !n.ev.IsFailure():
		return ""
	case at.status.verdict == nil:
		at.why.explain(n.err)
		j.reach(at, at.outcome.failures...)
	}
	return at.verdictAction()
}

// reach decides about failures by the first of them, unless the policy has decided already, and reports
// whether that ends more than one worker of a live group.
func (j *judge) reach(at *attempt, failures ...*failure.ProcessFailure) (all bool) {
	root := failure.NewReport(failure.ReportConfig{}, failures).Root()
	if j.engine != nil && at.status.verdict == nil && root != nil {
		at.status.verdict = j.decide(at, j.failureOf(at, root))
	}
	return at.status.verdict != nil && (at.status.verdict.Action != policy.Retry || at.status.verdict.All)
}

// decide asks the policy; nil if no rule applies. A host that the round needs cannot be drained.
func (j *judge) decide(at *attempt, f policy.Failure) *policy.Decision {
	f.Restarts, f.Progress = j.a.restarts.used-at.paid(), j.progressOf(at)
	// Without a restart the others continue alone: the policy is told of one that is left.
	if j.a.live != nil && at.status.phase == decide.Running && at.live.formed.Load() != nil && len(j.a.live.Left()) > 0 {
		f.Restarts -= max(0, 1-j.a.restarts.leftAfter(f.Restarts))
	}
	d := j.engine.Decide(f, time.Now())
	if d.Action == "" {
		return nil
	}
	if d.Action == policy.Drain && !j.a.cfg.Rendezvous.CanChange() {
		d.Action, d.Why = policy.Stop, "this job cannot continue without the host"
	}
	return &d
}

// failureOf is a worker's failure as a policy sees it.
func (j *judge) failureOf(at *attempt, f *failure.ProcessFailure) policy.Failure {
	p := policy.Failure{Cause: f.Class(), ExitCode: f.ExitCode, Host: j.a.cfg.Host, Role: j.a.cfg.Spec.Role,
		Stderr: policy.Tail(f.StderrTail)}
	if !at.team.began.IsZero() {
		p.Ran = f.Ended.Sub(at.team.began)
	}
	return p
}

// lossOf is the loss of a host as a policy sees it.
func (j *judge) lossOf(at *attempt, host string) policy.Failure {
	p := policy.Failure{Cause: failure.CauseHostLost, Host: host, Role: j.a.cfg.Spec.Role}
	if !at.team.began.IsZero() {
		p.Ran = time.Since(at.team.began)
	}
	return p
}

// progressOf is how far the workers of this host have come.
func (j *judge) progressOf(at *attempt) policy.Progress {
	var p policy.Progress
	if at.team.group != nil {
		for _, pid := range at.team.group.PIDs() {
			if h := j.a.heartbeat(pid); h != nil && !h.Time.Before(at.team.began) {
				p.Step = max(p.Step, h.Step)
			}
		}
	}
	if j.a.cfg.Policy != nil && j.a.cfg.Policy.NoProgress != nil {
		p.Files = j.files.look(j.a.cfg.Policy.NoProgress.Files)
	}
	return p
}

// carriedOut records in the policy that a decision is carried out, and notes its back-off.
func (j *judge) carriedOut(d *policy.Decision) {
	if d == nil {
		return
	}
	if j.engine != nil {
		j.engine.Record(*d)
	}
	if d.Action == policy.Retry && d.Delay > 0 {
		j.backOff = d
	}
}

// carriedOutElsewhere is carriedOut for another host's decision. Of the progress this
// host has its own view, because files may look different from here.
func (j *judge) carriedOutElsewhere(at *attempt, decided *policy.Decision) {
	if decided == nil {
		return
	}
	d := *decided
	d.Time = time.Now()
	own := j.progressOf(at)
	d.Progress = policy.Progress{Step: max(d.Progress.Step, own.Step), Files: own.Files}
	j.carriedOut(&d)
}

// waitBackOff waits out a back-off. The error is ctx's cause. The end of the job elsewhere ends
// the wait, too.
func (j *judge) waitBackOff(ctx context.Context) error {
	d, wait := j.backOff, j.pause
	j.backOff, j.pause = nil, 0
	if d != nil {
		wait = max(wait, d.Delay)
		j.a.emit(j.a.last, BackingOff{d, time.Now().Add(wait)})
	}
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	changes := j.a.cfg.Rendezvous.Changes()
	for {
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case c, ok := <-changes:
			switch {
			case !ok:
				changes = nil
			case c.Kind == rendezvous.Closed, c.Kind == rendezvous.Disconnected, c.Kind == rendezvous.Evicted:
				return nil // Next says what that means
			}
		}
	}
}
