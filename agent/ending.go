package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// An ending ends an attempt that no other follows, and has the result of the run.
type ending struct {
	a  *Agent
	at *attempt
}

// succeeded is the result of workers that all exited 0, but for those of a live group that were
// lost and not replaced.
func (e *ending) succeeded() *Result {
	r := &Result{State: Succeeded, Restarts: e.a.restarts.used, ReturnValues: make(map[int][]byte, len(e.at.outcome.exits))}
	for i, exit := range e.at.outcome.exits {
		r.ReturnValues[e.at.rank(i)] = exit.Value
	}
	for _, i := range slices.Sorted(maps.Keys(e.at.live.excluded)) {
		if x := e.at.live.excluded[i]; x.StoppedBy == 0 {
			e.at.outcome.failures = append(e.at.outcome.failures, e.at.why.explainExit(x, nil, nil))
		}
	}
	if len(e.at.outcome.failures) > 0 {
		r.Lost = e.at.why.ownReport()
		r.ReportFile = e.at.why.writeReport(r.Lost)
		e.a.log.Warn("live: the job has succeeded without workers that were lost and not replaced, because no restarts were left",
			"run_id", e.a.cfg.Rendezvous.RunID(), "lost_here", len(e.at.outcome.failures),
			"cause", r.Lost.Root().Error(), "report", r.ReportFile)
	}
	return r
}

// stopped is the result of an attempt whose workers the agent has stopped, which is not a failure
// of theirs. There is a report if one failed by itself.
func (e *ending) stopped(state State) *Result {
	if e.at.outcome.res != nil {
		for _, exit := range e.at.outcome.res.Failures {
			if exit.StoppedBy == 0 || exit.Abandoned != "" {
				e.at.why.explain(nil)
				return e.failed(state, e.at.why.ownReport())
			}
		}
	}
	return &Result{State: state, Restarts: e.a.restarts.used}
}

// fail is the end of a job whose workers failed, here or elsewhere, and which has
// no restarts left. n has the record of the failure unless this node is alone.
func (e *ending) fail(ctx context.Context, state State, n news) (*Result, error) {
	var report *failure.Report
	left := false
	if n.record != nil && n.record.Final {
		e.a.conclude(rendezvous.Outcome{Result: rendezvous.JobFailed, Host: n.record.Host, Cause: n.record.Cause})
	}
	if n.ev.IsFailure() { // this host's
		e.at.why.explain(n.err)
		e.at.notify.emitFailure()
		// If the others were told that all restart, a worker got stuck after that.
		if left = n.record != nil && !n.record.Final; left || e.at.alone() || n.record == nil {
			report = e.at.why.ownReport()
		} else {
			report = e.a.peers(e.at).Gather(ctx, e.at.why.ownReport(), e.at.outcome.failures, e.at.status.gone, e.a.cfg.Rendezvous.Changes())
		}
	} else {
		what := "workers failed on another host, and no restarts are left; stopping the workers of this host"
		if e.at.status.verdict = n.record.Decision; e.at.status.verdict != nil {
			what = "workers failed on another host, whose policy stops the job; stopping the workers of this host"
		}
		e.a.log.Warn(what, "host", n.record.Host, "rank", n.record.Rank, "cause", n.record.Cause)
		// Before the stop, which may take all of the grace: the host of the record waits less long for who is to read its
		// report, and the store may end with it.
		fetching, cancel := context.WithCancel(ctx)
		fetched := e.a.peers(e.at).Fetch(fetching)
		e.at.workers.stopWorkers(ctx, syscall.SIGTERM)
		e.at.why.explain(nil)
		report = e.a.peers(e.at).JobReport(ctx, e.at.why.ownReport(), e.at.outcome.failures, n.record, fetched)
		cancel()
		for range fetched { // until it is closed
		}
	}
	r := e.failed(state, report)
	r.Left = left
	if _, ok := errors.AsType[*process.StartError](n.err); n.err != nil && !ok {
		return r, n.err
	}
	if report.Root() == nil && n.record != nil {
		return r, fmt.Errorf("the agent of host %s has given up: %s", n.record.Host, n.record.Cause)
	}
	return r, nil
}

// failed is the result of an attempt that failed. It writes the report beside the
// attempt's logs.
func (e *ending) failed(state State, report *failure.Report) *Result {
	r := &Result{State: state, Restarts: e.a.restarts.used,
		Failures: make(map[int]*failure.ProcessFailure, len(e.at.outcome.failures)), Report: report}
	for _, f := range e.at.outcome.failures {
		r.Failures[f.Rank] = f
	}
	r.ReportFile = e.at.why.writeReport(r.Report)
	e.a.emit(e.at, FailureExplained{report, r.ReportFile})
	return r
}

// depart is the result of a host that its policy drains: the job continues without it.
func (e *ending) depart(state State) *Result {
	e.at.notify.emitFailure()
	r := e.failed(state, e.at.why.ownReport())
	r.Left, r.Drained = true, true
	e.a.log.Error("this host leaves the job, which may continue without it", "cause", r.Report.Root().Error(),
		"decision", e.at.status.verdict.String())
	return r
}

// giveUp ends the job because a host was lost and a rule, here or on the host of the record,
// stops the job for that.
func (e *ending) giveUp(ctx context.Context, n news) (*Result, error) {
	rec := n.record
	if rec == nil {
		e.at.notify.emitLoss(n)
		rec = e.at.notify.newRecord(nil, nil, true)
		rec.Cause = fmt.Sprintf("a host is lost (%s); %s", changeText(n.change), rec.Decision)
		if !e.at.alone() && n.change.Rank >= 0 {
			e.at.notify.put(context.WithoutCancel(ctx), rec)
		}
	}
	e.a.log.Error("stopping the job: " + rec.Cause)
	e.a.conclude(rendezvous.Outcome{Result: rendezvous.JobFailed, Host: rec.Host, Cause: rec.Cause})
	e.a.emit(e.at, Stopping{Failed, "for good", rec.Cause})
	e.at.workers.stopWorkers(ctx, syscall.SIGTERM)
	return e.stopped(Failed), errors.New(rec.Cause)
}

// finish is the result of this host's workers, which have succeeded. It is not a failure that the
// others cannot be waited for.
func (e *ending) finish(ctx context.Context, n news) *Result {
	elapsed := time.Since(e.at.status.since)
	r := e.succeeded()
	if n.ev == decide.EvNodeGone || n.ev == decide.EvEvicted {
		n.ev, n.err = decide.EvBarrierBroken, errors.New(n.why())
	}
	r.Left = n.ev == decide.EvBarrierTimedOut || n.ev == decide.EvBarrierBroken || n.ev == decide.EvDisconnected
	if n.ev == decide.EvBarrierPassed || n.ev == decide.EvSucceeded {
		e.a.conclude(rendezvous.Outcome{Result: rendezvous.JobSucceeded, Host: e.a.cfg.Host})
	}
	switch n.ev {
	case decide.EvBarrierTimedOut:
		e.a.log.Error("exit barrier: some nodes did not finish in time; this host leaves the job to them",
			"missing", strings.Join(e.a.peers(e.at).Missing(ctx), ", "), "elapsed", elapsed)
	case decide.EvBarrierBroken:
		e.a.log.Error("exit barrier: cannot wait for the other nodes; this host leaves the job to them",
			"error", n.err, "elapsed", elapsed)
	case decide.EvDisconnected:
		e.a.log.Error("exit barrier: lost the connection to the rendezvous; this host leaves the job to the others",
			"error", n.change.Err, "elapsed", elapsed)
	case decide.EvClosed, decide.EvClosedWhenDone:
		e.a.log.Info("the job has ended; the workers of this host had succeeded", "elapsed", elapsed)
	}
	return r
}

// stopPreempted stops the workers because another node was told to stop the job.
func (e *ending) stopPreempted(ctx context.Context, rec *peers.Record) *Result {
	p := &failure.Preemption{Host: rec.Host, Signal: failure.Signal(rec.Signal), Time: rec.Time.Add(-e.at.round.ClockOffset)}
	e.a.log.Warn("the job is preempted; stopping the workers", "by", p.String())
	e.a.endPreempted(rec)
	return e.stopForGood(ctx, p)
}

// stopForGood stops the workers of a job that is preempted.
func (e *ending) stopForGood(ctx context.Context, p *failure.Preemption) *Result {
	e.a.emit(e.at, JobPreempted{*p})
	e.a.emit(e.at, Stopping{Failed, "for good", p.String()})
	began := time.Now()
	e.at.workers.stopWorkers(ctx, syscall.Signal(p.Signal))
	return e.preempted(p, began)
}

// preempted is the result of an attempt of a preempted job, whose workers were told
// to stop at began. A report of it is kept in any case.
func (e *ending) preempted(p *failure.Preemption, began time.Time) *Result {
	e.addWorkers(p, began)
	e.at.status.preempted = p
	r := e.stopped(Failed)
	if r.Preempted = p; r.Report == nil {
		r.ReportFile = e.at.why.writeReport(e.at.why.ownReport())
	}
	return r
}

// addWorkers adds to p how the workers ended, and what cut their grace short.
func (e *ending) addWorkers(p *failure.Preemption, began time.Time) {
	grace := max(e.a.cfg.ShutdownTimeout, 0)
	p.Grace = grace.Seconds()
	for _, i := range slices.Sorted(maps.Keys(e.at.outcome.exits)) {
		exit := e.at.outcome.exits[i]
		w := failure.PreemptedWorker{
			Rank: e.at.rank(i), LocalRank: i, PID: exit.PID, ExitCode: exit.Code, Ended: exit.Time,
			Signal: failure.Signal(max(0, -exit.Code)), StoppedBy: failure.Signal(exit.StoppedBy),
		}
		over := exit.Time.Sub(began) >= grace
		w.Killed = exit.StoppedBy != 0 && exit.Code == -int(syscall.SIGKILL) && (over || e.hurried())
		p.Add(w, over)
	}
}

// hurried reports whether a second signal has come (Config.Hurry).
func (e *ending) hurried() bool {
	select {
	case <-e.a.cfg.Hurry: // never, if it is nil
		return true
	default:
		return false
	}
}

// endedElsewhere stops the workers, if there are any, because another node has ended the job, without a record.
func (e *ending) endedElsewhere(ctx context.Context, n news) (*Result, error) {
	e.at.workers.stopWorkers(ctx, syscall.SIGTERM)
	who := "another node"
	if n.change.Node != "" {
		who = "node " + n.change.Node
	}
	return e.stopped(Failed),
		fmt.Errorf("%s has ended the job; its output should say why: %w", who, rendezvous.ErrClosed)
}

// leave stops the workers because the agent was told to.
func (e *ending) leave(ctx context.Context, state State) (*Result, error) {
	cause := context.Cause(ctx)
	p := e.a.preemption(cause)
	e.a.log.Warn("shutting down workers", "cause", cause, "grace", max(e.a.cfg.ShutdownTimeout, 0))
	if p != nil {
		early := *p // a copy: stopForGood adds the workers to p meanwhile
		e.at.run.wg.Go(func() { e.at.notify.announcePreemption(&early) })
		return e.stopForGood(ctx, p), cause
	}
	e.a.emit(e.at, Stopping{State: state, Why: cause.Error()})
	e.at.workers.stopWorkers(ctx, stopSignal(cause))
	r := e.stopped(state)
	r.Left = true
	return r, cause
}

// abort stops the workers because the agent cannot continue.
func (e *ending) abort(ctx context.Context, n news) (*Result, error) {
	err := n.err
	if n.ev == decide.EvDisconnected {
		err = errors.New("lost the connection to the rendezvous; the workers of this host were stopped")
		if n.change.Err != nil {
			err = fmt.Errorf("%w: %w", err, n.change.Err)
		}
	}
	e.at.workers.stopWorkers(ctx, syscall.SIGTERM)
	return e.stopped(Failed), err
}

// endPatience is how long the agent looks for the reason why the job has ended: nothing else is
// to be done any more.
func (a *Agent) endPatience() time.Duration { return 5 * a.cfg.PeerTimeout }

// endedMeanwhile is the end of a job that was closed while this host wanted to go
// from its last attempt to another round.
func (a *Agent) endedMeanwhile(ctx context.Context, last *attempt) (*Result, error) {
	if !last.alone() {
		look, cancel := context.WithTimeout(ctx, a.endPatience())
		rec := a.peers(last).Find(look)
		cancel()
		switch {
		case rec == nil:
		case rec.Signal != 0:
			return last.ending.stopPreempted(ctx, rec), nil
		case rec.LostHost():
			return last.ending.giveUp(ctx, newsOf(rec))
		case rec.Final:
			return last.ending.fail(ctx, Failed, newsOf(rec))
		}
	}
	if last.status.phase == decide.Finished {
		a.log.Info("the job has ended; the workers of this host had succeeded")
		return last.ending.succeeded(), nil
	}
	return last.ending.stopped(Failed),
		fmt.Errorf("another node has ended the job while this host waited for a new round; its output should say why: %w",
			rendezvous.ErrClosed)
}
