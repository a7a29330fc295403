package agent

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/rendezvous"
)

// newsOf is the news of another node's record.
func newsOf(r *peers.Record) news {
	switch {
	case r.Signal != 0:
		return news{ev: decide.EvPeerPreempted, record: r}
	case r.LostHost():
		return news{ev: decide.EvPeerLostHost, record: r}
	case r.Asked:
		return news{ev: decide.EvAsked, record: r}
	case r.Live:
		return news{ev: decide.EvPeerLive, record: r}
	case r.Final:
		return news{ev: decide.EvPeerGaveUp, record: r}
	}
	return news{ev: decide.EvPeerRestarts, record: r}
}

// peers are the agents of an attempt's round.
func (a *Agent) peers(at *attempt) *peers.Round {
	return &peers.Round{Info: at.round, Host: a.cfg.Host, Timeout: a.cfg.PeerTimeout, Log: a.log}
}

// learnRestarts finds out how many restarts the job has used before a round. Where
// nobody else can have counted one, nobody is asked. A store that knows of fewer is a new holder's.
func (a *Agent) learnRestarts(ctx context.Context, at *attempt) {
	if at.round.Round == 0 || at.alone() && !a.cfg.Rendezvous.CanChange() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.PeerTimeout)
	defer cancel()
	a.restarts = max(a.restarts, at.round.Restarts)
	n, err := peers.Raise(ctx, at.round.JobStore, peers.RestartsKey, a.restarts)
	if err != nil {
		a.log.Warn("cannot find out how many restarts the job has used", "error", err, "restart", a.restarts)
	} else if n <= peers.MostRestarts {
		a.restarts = n
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
	a.restarts += 1 - at.paid()
	if rec != nil {
		a.restarts = max(a.restarts, rec.Restarts)
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
	a.restarts = max(a.restarts, rec.Restarts)
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
	a.restarts = max(a.restarts, rec.Restarts)
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
