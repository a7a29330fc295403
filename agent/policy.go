package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/rendezvous"
)

// stderrWait is how long announceEarly waits at first for the rest of what a failed worker has
// written to stderr: where nothing is there yet, or a rule of the policy reads it.
const stderrWait = 200 * time.Millisecond

// fileTimeout bounds a look at the files that show progress.
const fileTimeout = 2 * time.Second

// newPolicy makes the engine that decides about failures; nil where there is no policy, so that
// the number of restarts alone decides.
func newPolicy(cfg *Config) *policy.Engine {
	if cfg.Policy == nil {
		return nil
	}
	return &policy.Engine{Policy: cfg.Policy, MaxRestarts: cfg.MaxRestarts, Rand: cfg.Rand}
}

// consult asks the policy what follows from news of a failure or of a lost host; "" if it says
// nothing. What it says of a failure stands for the rest of the attempt (status.verdict).
func (a *Agent) consult(at *attempt, n news) decide.Verdict {
	switch {
	case a.policy == nil:
		return ""
	case n.ev.IsChange() && at.status.phase != decide.Failing && n.change.Kind == rendezvous.NodeLost &&
		a.cfg.Policy.Names(failure.CauseHostLost):
		at.status.lostHost = cmp.Or(n.host, n.change.Node)
		at.status.verdict = a.decide(at, a.lossOf(at, at.status.lostHost))
	case !n.ev.IsFailure():
		return ""
	case at.status.verdict == nil:
		a.explain(at, n.err)
		a.reach(at, at.outcome.failures...)
	}
	return at.verdictAction()
}

// verdictAction is what the policy says of the attempt's failure; "" if it says nothing.
func (at *attempt) verdictAction() decide.Verdict {
	if at.status.verdict == nil {
		return ""
	}
	return decide.Verdict(at.status.verdict.Action)
}

// reach decides about failures by the first of them, unless the policy has decided already, and reports
// whether that ends more than one worker of a live group.
func (a *Agent) reach(at *attempt, failures ...*failure.ProcessFailure) (all bool) {
	root := failure.NewReport(failure.ReportConfig{}, failures).Root()
	if a.policy != nil && at.status.verdict == nil && root != nil {
		at.status.verdict = a.decide(at, a.failureOf(at, root))
	}
	return at.status.verdict != nil && (at.status.verdict.Action != policy.Retry || at.status.verdict.All)
}

// atOnce is a decision without its back-off: those who go on wait for nothing.
func atOnce(d *policy.Decision) *policy.Decision {
	if d == nil {
		return nil
	}
	prompt := *d
	prompt.Delay = 0
	return &prompt
}

// decide asks the policy; nil if no rule applies. A host without which there is no round cannot be drained.
func (a *Agent) decide(at *attempt, f policy.Failure) *policy.Decision {
	f.Restarts, f.Progress = a.restarts-at.paid(), a.progressOf(at)
	// Without a restart the others continue alone.
	if a.live != nil && at.status.phase == decide.Running && at.live.formed.Load() != nil && len(a.live.left()) > 0 {
		f.Restarts = min(f.Restarts, a.cfg.MaxRestarts-1)
	}
	d := a.policy.Decide(f, time.Now())
	if d.Action == "" {
		return nil
	}
	if d.Action == policy.Drain && !a.cfg.Rendezvous.CanChange() {
		d.Action, d.Why = policy.Stop, "this job cannot continue without the host"
	}
	return &d
}

// failureOf is a worker's failure as a policy sees it.
func (a *Agent) failureOf(at *attempt, f *failure.ProcessFailure) policy.Failure {
	p := policy.Failure{Cause: f.Class(), ExitCode: f.ExitCode, Host: a.cfg.Host, Role: a.cfg.Spec.Role,
		Stderr: policy.Tail(f.StderrTail)}
	if !at.team.began.IsZero() {
		p.Ran = f.Ended.Sub(at.team.began)
	}
	return p
}

// lossOf is the loss of a host as a policy sees it.
func (a *Agent) lossOf(at *attempt, host string) policy.Failure {
	p := policy.Failure{Cause: failure.CauseHostLost, Host: host, Role: a.cfg.Spec.Role}
	if !at.team.began.IsZero() {
		p.Ran = time.Since(at.team.began)
	}
	return p
}

// progressOf is how far the workers of this host have come.
func (a *Agent) progressOf(at *attempt) policy.Progress {
	var p policy.Progress
	if at.team.group != nil {
		for _, pid := range at.team.group.PIDs() {
			if h := a.heartbeat(pid); h != nil && !h.Time.Before(at.team.began) {
				p.Step = max(p.Step, h.Step)
			}
		}
	}
	if a.cfg.Policy != nil && a.cfg.Policy.NoProgress != nil {
		p.Files = a.files.look(a.cfg.Policy.NoProgress.Files)
	}
	return p
}

// A prober looks at files that may be on a file system which does not answer. busy is where
// a look that was not over in time will send what it finds, which the next look returns;
// nil without one. Only the goroutine of Run uses it.
type prober struct{ busy chan string }

// look returns a text that changes when one of the files does; "" where there are
// none, or they cannot be looked at in time.
func (p *prober) look(files []string) string {
	if len(files) == 0 {
		return ""
	}
	if p.busy == nil {
		p.busy = make(chan string, 1)
		// The goroutine ends later than the job only if the file system blocks it.
		go func(done chan<- string) { done <- stamps(files) }(p.busy)
	}
	timer := time.NewTimer(fileTimeout)
	defer timer.Stop()
	select {
	case text := <-p.busy:
		p.busy = nil
		return text
	case <-timer.C:
		return ""
	}
}

// stamps says of each file what it is and from when.
func stamps(files []string) string {
	var b strings.Builder
	for _, file := range files {
		target, _ := os.Readlink(file)
		if info, err := os.Stat(file); err == nil {
			fmt.Fprintf(&b, "%s %d %s;", target, info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano))
		} else {
			fmt.Fprintf(&b, "%s -;", target)
		}
	}
	return b.String()
}

// emitFailed emits that the attempt has failed: by root or, if that is nil, by the loss of a host.
func (a *Agent) emitFailed(at *attempt, root *failure.ProcessFailure, f policy.Failure) {
	f.Restarts, f.Progress = a.restarts, a.progressOf(at)
	a.emit(at, AttemptFailed{f, root, at.status.verdict})
}

// emitFailure emits the failure of this host's workers, once.
func (a *Agent) emitFailure(at *attempt) {
	root := a.ownReport(at).Root()
	if root == nil || root.Stopped() || at.status.emitted {
		return
	}
	at.status.emitted = true
	a.emitFailed(at, root, a.failureOf(at, root))
}

// emitLoss emits that the attempt ends because a host was lost, if that is why.
func (a *Agent) emitLoss(at *attempt, n news) {
	if n.change.Kind == rendezvous.NodeLost {
		a.emitFailed(at, nil, a.lossOf(at, cmp.Or(at.status.lostHost, n.change.Node)))
	}
}

// carriedOut records in the policy that a decision is carried out, and notes its back-off.
func (a *Agent) carriedOut(d *policy.Decision) {
	if d == nil {
		return
	}
	if a.policy != nil {
		a.policy.Record(*d)
	}
	if d.Action == policy.Retry && d.Delay > 0 {
		a.backOff = d
	}
}

// carriedOutElsewhere is carriedOut for another host's decision. Of the progress this
// host has its own view, because files may look different from here.
func (a *Agent) carriedOutElsewhere(at *attempt, decided *policy.Decision) {
	if decided == nil {
		return
	}
	d := *decided
	d.Time = time.Now()
	own := a.progressOf(at)
	d.Progress = policy.Progress{Step: max(d.Progress.Step, own.Step), Files: own.Files}
	a.carriedOut(&d)
}

// waitBackOff waits out a back-off. The error is ctx's cause. The end of the job elsewhere ends
// the wait, too.
func (a *Agent) waitBackOff(ctx context.Context) error {
	d, wait := a.backOff, a.pause
	a.backOff, a.pause = nil, 0
	if d != nil {
		wait = max(wait, d.Delay)
		a.emit(a.last, BackingOff{d, time.Now().Add(wait)})
	}
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	changes := a.cfg.Rendezvous.Changes()
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

// depart is the result of a host that its policy drains: the job goes on without it.
func (a *Agent) depart(at *attempt, state State) *Result {
	a.emitFailure(at)
	r := a.failed(at, state, a.ownReport(at))
	r.Left, r.Drained = true, true
	a.log.Error("this host leaves the job, which may continue without it", "cause", r.Report.Root().Error(),
		"decision", at.status.verdict.String())
	return r
}

// giveUp ends the job because a host was lost and a rule, here or on the host of the record,
// stops the job for that.
func (a *Agent) giveUp(ctx context.Context, at *attempt, n news) (*Result, error) {
	rec := n.record
	if rec == nil {
		a.emitLoss(at, n)
		rec = a.newRecord(at, nil, nil, true)
		rec.Cause = fmt.Sprintf("a host is lost (%s); %s", changeText(n.change), rec.Decision)
		if !at.alone() && n.change.Rank >= 0 {
			a.put(context.WithoutCancel(ctx), at, rec)
		}
	}
	a.log.Error("stopping the job: " + rec.Cause)
	a.conclude(rendezvous.Outcome{Result: rendezvous.JobFailed, Host: rec.Host, Cause: rec.Cause})
	a.emit(at, Stopping{Failed, "for good", rec.Cause})
	a.stopWorkers(ctx, at, syscall.SIGTERM)
	return a.stopped(at, Failed), errors.New(rec.Cause)
}

// decisionAttr is a decision for the log.
func decisionAttr(d *policy.Decision) []any {
	if d == nil {
		return nil
	}
	return []any{"decision", d.String()}
}

// announceLater sends the news of a worker's failure again, when the rest of its stderr should
// be there: each time after twice as long.
func (a *Agent) announceLater(at *attempt, n news) {
	n.waited = max(stderrWait, 2*n.waited)
	at.run.wg.Go(func() {
		if at.outlives(n.waited) {
			at.send(n)
		}
	})
}
