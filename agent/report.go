package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// saysNothing says that not all that a worker wrote may have been here when its failure was explained.
func saysNothing(f *failure.ProcessFailure) bool {
	return f.ExitCode > 0 && f.Traceback == "" && f.ErrorFile == "" && len(f.LastLines) == 0
}

// isOwn reports whether a failure is that of the worker that had a local rank here.
func (at *attempt) isOwn(f *failure.ProcessFailure, localRank int) bool {
	return f.LocalRank == localRank && f.Rank == at.rank(localRank)
}

// onlyLostPeers reports whether the failures are all the consequence of another
// worker's.
func onlyLostPeers(failures []*failure.ProcessFailure) bool {
	root := failure.NewReport(failure.ReportConfig{}, failures).Root()
	return root != nil && root.LostPeer()
}

// succeeded is the result of workers that all exited 0, but for those of a live group that were
// lost and not replaced.
func (a *Agent) succeeded(at *attempt) *Result {
	r := &Result{State: Succeeded, Restarts: a.restarts, ReturnValues: make(map[int][]byte, len(at.outcome.exits))}
	for i, exit := range at.outcome.exits {
		r.ReturnValues[at.rank(i)] = exit.Value
	}
	for _, i := range slices.Sorted(maps.Keys(at.live.excluded)) {
		if x := at.live.excluded[i]; x.StoppedBy == 0 {
			at.outcome.failures = append(at.outcome.failures, at.why.explainExit(x, nil, nil))
		}
	}
	if len(at.outcome.failures) > 0 {
		r.Lost = at.why.ownReport()
		r.ReportFile = at.why.writeReport(r.Lost)
		a.log.Warn("live: the job has succeeded without workers that were lost and not replaced, because no restarts were left",
			"run_id", a.cfg.Rendezvous.RunID(), "lost_here", len(at.outcome.failures),
			"cause", r.Lost.Root().Error(), "report", r.ReportFile)
	}
	return r
}

// stopped is the result of an attempt whose workers the agent has stopped, which is not a failure
// of theirs. There is a report if one failed by itself.
func (a *Agent) stopped(at *attempt, state State) *Result {
	if at.outcome.res != nil {
		for _, exit := range at.outcome.res.Failures {
			if exit.StoppedBy == 0 || exit.Abandoned != "" {
				at.why.explain(nil)
				return a.failed(at, state, at.why.ownReport())
			}
		}
	}
	return &Result{State: state, Restarts: a.restarts}
}

// fail is the end of a job whose workers failed, here or elsewhere, and which has
// no restarts left. n has the record of the failure unless this node is alone.
func (a *Agent) fail(ctx context.Context, at *attempt, state State, n news) (*Result, error) {
	var report *failure.Report
	left := false
	if n.record != nil && n.record.Final {
		a.conclude(rendezvous.Outcome{Result: rendezvous.JobFailed, Host: n.record.Host, Cause: n.record.Cause})
	}
	if n.ev.IsFailure() { // this host's
		at.why.explain(n.err)
		a.emitFailure(at)
		// If the others were told that all restart, a worker got stuck after that.
		if left = n.record != nil && !n.record.Final; left || at.alone() || n.record == nil {
			report = at.why.ownReport()
		} else {
			report = a.peers(at).Gather(ctx, at.why.ownReport(), at.outcome.failures, at.status.gone, a.cfg.Rendezvous.Changes())
		}
	} else {
		what := "workers failed on another host, and no restarts are left; stopping the workers of this host"
		if at.status.verdict = n.record.Decision; at.status.verdict != nil {
			what = "workers failed on another host, whose policy stops the job; stopping the workers of this host"
		}
		a.log.Warn(what, "host", n.record.Host, "rank", n.record.Rank, "cause", n.record.Cause)
		fetching, cancel := context.WithCancel(ctx)
		fetched := a.peers(at).Fetch(fetching)
		a.stopWorkers(ctx, at, syscall.SIGTERM)
		at.why.explain(nil)
		report = a.peers(at).JobReport(ctx, at.why.ownReport(), at.outcome.failures, n.record, fetched)
		cancel()
		for range fetched { // until it is closed
		}
	}
	r := a.failed(at, state, report)
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
func (a *Agent) failed(at *attempt, state State, report *failure.Report) *Result {
	r := &Result{State: state, Restarts: a.restarts,
		Failures: make(map[int]*failure.ProcessFailure, len(at.outcome.failures)), Report: report}
	for _, f := range at.outcome.failures {
		r.Failures[f.Rank] = f
	}
	r.ReportFile = at.why.writeReport(r.Report)
	a.emit(at, FailureExplained{report, r.ReportFile})
	return r
}

// finishLogs ends the attempt's logs and timers once its workers have ended, and brings all that
// they wrote to the console. A stuck console may hold it up only until the job is stopped.
func (a *Agent) finishLogs(ctx context.Context, at *attempt) {
	if at.status.flushed {
		return
	}
	at.status.flushed = true
	a.disarmWatchdog()
	flush, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(closeTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-a.cfg.Hurry:
		case <-flush.Done():
		}
		cancel()
	})
	defer stop()
	stats, err := at.team.logs.Finish(flush)
	if stats.DiskFull {
		at.status.diskFull = a.cfg.Logs.Dir()
	}
	if err != nil || stats.LostBytes > 0 {
		a.log.Warn("worker output was lost", "bytes", stats.LostBytes, "error", err)
	}
}
