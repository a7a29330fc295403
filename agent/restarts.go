package agent

import (
	"context"
	"fmt"
	"syscall"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
)

// restarts counts the restarts that the job has used, of those that this host's Config allows.
// Where one has failed, only this type compares the two, and the policy's engine, which is told both.
type restarts struct {
	used int // it never falls
	most int
}

// raise notes that the job has used n, as the other hosts know it.
func (r *restarts) raise(n int) { r.used = max(r.used, n) }

// left is how many more the job may use. It is negative where the other hosts have had more.
func (r *restarts) left() int { return r.leftAfter(r.used) }

// leftAfter is left once n have been used.
func (r *restarts) leftAfter(n int) int { return r.most - n }

// learnRestarts finds out how many restarts the job has used before a round. Where
// nobody else can have counted one, nobody is asked. A store that knows of fewer is a new holder's.
func (a *Agent) learnRestarts(ctx context.Context, at *attempt) {
	if at.round.Round == 0 || at.alone() && !a.cfg.Rendezvous.CanChange() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.PeerTimeout)
	defer cancel()
	a.restarts.raise(at.round.Restarts)
	n, err := peers.Raise(ctx, at.round.JobStore, peers.RestartsKey, a.restarts.used)
	if err != nil {
		a.log.Warn("cannot find out how many restarts the job has used", "error", err, "restart", a.restarts.used)
	} else if n <= peers.MostRestarts {
		a.restarts.raise(n)
	}
}

// restart counts a restart for this host's own failure, and keeps a report of it. Live says that
// the workers of other hosts continue.
func (a *Agent) restart(at *attempt, rec *peers.Record, live bool) {
	at.notify.emitFailure()
	if live {
		a.judge.carriedOut(atOnce(at.status.verdict))
	} else {
		a.judge.carriedOut(at.status.verdict)
	}
	failed := at.ending.failed(Stopped, at.why.ownReport())
	a.restarts.used += 1 - at.paid()
	if rec != nil {
		a.restarts.raise(rec.Restarts)
	}
	a.emit(at, RestartCounted{failed.Report.Root().Error(), failed.ReportFile, at.status.verdict, live})
}

// follow stops the workers because another node's have failed, and continues with the
// count of that node.
func (a *Agent) follow(ctx context.Context, at *attempt, rec *peers.Record) {
	a.judge.carriedOutElsewhere(at, rec.Decision)
	if rec.Leaves() {
		a.continueWithout(ctx, at, rec)
		return
	}
	a.log.Warn("workers failed on another host; restarting the worker group with it", "host", rec.Host, "rank", rec.Rank,
		"cause", rec.Cause, "restart", fmt.Sprintf("%d/%d", rec.Restarts, a.cfg.MaxRestarts))
	a.emit(at, Stopping{State: Stopped, Why: fmt.Sprintf("rank %d on %s: %s", rec.Rank, rec.Host, rec.Cause)})
	if failures, err := failure.Decode(rec.Failures, at.round.ClockOffset); err == nil && len(failures) > 0 {
		report := failure.NewReport(at.why.reportConfig(), failures)
		a.emit(at, FailureExplained{report, at.why.writeReport(report)})
	}
	at.workers.stopWorkers(ctx, syscall.SIGTERM)
	a.restarts.raise(rec.Restarts)
	a.emit(at, RestartCounted{})
}

// continueWithout stops the workers because another node leaves the job because of its
// workers' failure. No restart is counted.
func (a *Agent) continueWithout(ctx context.Context, at *attempt, rec *peers.Record) {
	why := fmt.Sprintf("rank %d on %s: %s", rec.Rank, rec.Host, rec.Cause)
	a.log.Warn(
		"a host leaves the job because its workers failed; stopping the workers for a new round, no restart is counted",
		"host", rec.Host, "rank", rec.Rank, "cause", rec.Cause, "decision", rec.Decision.String())
	a.emit(at, Stopping{Stopped, "for a round without " + rec.Host, why})
	at.workers.stopWorkers(ctx, syscall.SIGTERM)
	a.restarts.raise(rec.Restarts)
}
