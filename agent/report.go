package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// explain finds out why this host's workers failed; startErr is why they could
// not be started.
func (a *Agent) explain(at *attempt, startErr error) {
	if at.outcome.failures != nil {
		return
	}
	var exits map[int]process.Exit
	if at.outcome.res != nil {
		exits = at.outcome.res.Failures
	}
	if e, ok := errors.AsType[*process.StartError](startErr); ok {
		at.outcome.exits = map[int]process.Exit{e.LocalRank: {LocalRank: e.LocalRank, Code: 1, Time: time.Now()}}
		exits = at.outcome.exits
	} else {
		startErr = nil
	}
	faults := sync.OnceValue(func() *evidence.GPUFaults { return a.findFaults(at) })
	a.addLosses(at)
	for _, localRank := range slices.Sorted(maps.Keys(exits)) {
		if slices.ContainsFunc(at.outcome.failures, func(f *failure.ProcessFailure) bool { return at.isOwn(f, localRank) }) {
			continue // it was to replace that one
		}
		at.outcome.failures = append(at.outcome.failures, a.explainExit(at, exits[localRank], startErr, faults))
	}
}

// explainExit finds out why a worker failed. faults looks for those of GPUs; nil where there are
// none.
func (a *Agent) explainExit(at *attempt, exit process.Exit, startErr error,
	faults func() *evidence.GPUFaults) *failure.ProcessFailure {
	localRank := exit.LocalRank
	missed, stoppedBy := at.evidence.Deadline(localRank), exit.StoppedBy
	switch {
	case missed != "" && at.evidence.OnlyWaited(localRank):
		missed, stoppedBy = "", syscall.SIGKILL
	case strings.HasPrefix(missed, failure.LivePrefix) && at.live.broken.Load() != nil: // the loss before is the cause
	case missed != "":
		stoppedBy = 0 // it is the cause, also if its peers' end was quicker
	}
	sink, o := at.team.logs.Sink(localRank), exit.Observation()
	o.Rank, o.Started, o.Host, o.Hosts = at.rank(localRank), at.team.began, a.cfg.Host, at.round.WorldSize
	o.Workers, o.StoppedBy, o.TimerExpired = at.team.ranks.WorldSize, failure.Signal(stoppedBy), missed
	if o.Entrypoint = a.cfg.Spec.Entrypoint; startErr != nil {
		o.Err = startErr
	}
	o.StderrTail, o.StderrPath, o.Mixed = at.team.logs.StderrTail(localRank), sink.StderrPath, sink.Joined()
	o.StdoutTail = at.team.logs.StdoutTail(localRank)
	o.DiskFull, o.Core = at.status.diskFull, evidence.CoreOf(exit, a.cfg.Host)
	if faults != nil && evidence.MayBeHardware(exit, missed, o.StderrTail) {
		o.GPU = faults().Of(exit.PID)
	}
	return failure.New(o)
}

// saysNothing says that not all that a worker wrote may have been here when its failure was explained.
func saysNothing(f *failure.ProcessFailure) bool {
	return f.ExitCode > 0 && f.Traceback == "" && f.ErrorFile == "" && len(f.LastLines) == 0
}

// addLosses adds the failures after which the workers of a live group could not go on.
func (a *Agent) addLosses(at *attempt) {
	b := at.live.broken.Load()
	if b == nil {
		return
	}
	for _, f := range b.losses {
		at.live.mu.Lock()
		x, last := at.live.excluded[f.LocalRank]
		at.live.mu.Unlock()
		if last && saysNothing(f) && at.isOwn(f, f.LocalRank) {
			f = a.explainExit(at, x, nil, nil)
		}
		at.outcome.failures = append(at.outcome.failures, f)
	}
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
			at.outcome.failures = append(at.outcome.failures, a.explainExit(at, x, nil, nil))
		}
	}
	if len(at.outcome.failures) > 0 {
		r.Lost = a.ownReport(at)
		r.ReportFile = a.writeReport(at, r.Lost)
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
				a.explain(at, nil)
				return a.failed(at, state, a.ownReport(at))
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
		a.explain(at, n.err)
		a.emitFailure(at)
		// If the others were told that all restart, a worker got stuck after that.
		if left = n.record != nil && !n.record.Final; left || at.alone() || n.record == nil {
			report = a.ownReport(at)
		} else {
			report = a.peers(at).Gather(ctx, a.ownReport(at), at.outcome.failures, at.status.gone, a.cfg.Rendezvous.Changes())
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
		a.explain(at, nil)
		report = a.peers(at).JobReport(ctx, a.ownReport(at), at.outcome.failures, n.record, fetched)
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

// ownReport explains this host's failures.
func (a *Agent) ownReport(at *attempt) *failure.Report {
	return failure.NewReport(a.reportConfig(at), at.outcome.failures)
}

// reportConfig is what this host knows of the attempt as a whole.
func (a *Agent) reportConfig(at *attempt) failure.ReportConfig {
	cfg := failure.ReportConfig{
		Title: a.cfg.Spec.Title, Host: a.cfg.Host, RunID: a.cfg.Rendezvous.RunID(),
		Attempt: a.restarts, Restarts: a.cfg.MaxRestarts, FirstRank: at.team.ranks.Base, Preempted: at.status.preempted,
	}
	if at.status.verdict != nil {
		cfg.Decision = at.status.verdict.String()
	}
	if e := at.evidence.Settled(); e != nil {
		cfg.Autopsy, cfg.AutopsyFile = e.Report.Summary(), e.File
	}
	return cfg
}

// failed is the result of an attempt that failed. It writes the report beside the
// attempt's logs.
func (a *Agent) failed(at *attempt, state State, report *failure.Report) *Result {
	r := &Result{State: state, Restarts: a.restarts,
		Failures: make(map[int]*failure.ProcessFailure, len(at.outcome.failures)), Report: report}
	for _, f := range at.outcome.failures {
		r.Failures[f.Rank] = f
	}
	r.ReportFile = a.writeReport(at, r.Report)
	a.emit(at, FailureExplained{report, r.ReportFile})
	return r
}

// writeReport writes the report as JSON into the attempt's log directory and
// returns the file's path; "" where there is no such directory.
func (a *Agent) writeReport(at *attempt, report *failure.Report) string {
	if at.team.logs == nil || at.team.logs.Dir() == "" { // the job ended before its first attempt, or keeps no files
		return ""
	}
	path := filepath.Join(at.team.logs.Dir(), "report.json")
	temp := filepath.Join(at.team.logs.Dir(), ".report.json") // so that nobody reads half a report
	file, err := safeopen.Create(temp)
	if err == nil {
		if err = errors.Join(report.WriteJSON(file), file.Close()); err == nil {
			err = os.Rename(temp, path)
		}
	}
	if err != nil {
		os.Remove(temp)
		a.log.Warn("cannot write the failure report", "error", err)
		return ""
	}
	return path
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
