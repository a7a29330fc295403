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

// announce tells the other nodes that this one's workers failed, unless announceEarly has, and
// puts this node's record into n. If another node was first, whose record decides then,
// announce returns that as news.
func (a *Agent) announce(ctx context.Context, at *attempt, n *news, final bool) *news {
	if n.record == nil {
		n.record = at.status.record // of announceEarly
	}
	if n.record != nil && at.status.unwritten.Load() {
		a.put(ctx, at, n.record) // what has been decided stays
		return nil
	}
	if n.record != nil || at.alone() && !a.cfg.Rendezvous.CanChange() {
		return nil
	}
	a.explain(at, n.err)
	n.record = a.newRecord(at, at.outcome.failures, n.err, final)
	other := a.put(ctx, at, n.record)
	if at.status.unwritten.Load() {
		other = a.put(ctx, at, n.record)
	}
	return other
}

// put writes a record, unless another node's is there, which it returns as news.
func (a *Agent) put(ctx context.Context, at *attempt, rec *peers.Record) *news {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.PeerTimeout)
	defer cancel()
	first, err := a.peers(at).Put(ctx, rec)
	at.status.unwritten.Store(err != nil)
	switch {
	case err != nil:
		a.log.Warn("cannot tell the other nodes about the failure", "error", err)
		return nil
	case first == rec && !at.alone():
		a.peers(at).SayLastWords(ctx, rec, func() []byte { return at.team.logs.StderrTail(at.localRank(rec.Rank)) })
		return nil
	case first == nil, first == rec, rec.Live && newsOf(first).ev == decide.EvPeerLive: // it has the others do the same
		return nil
	}
	other := newsOf(first)
	return &other
}

// hear waits for another node's record, and sends it.
func (a *Agent) hear(at *attempt) {
	if rec := a.peers(at).Hear(at.run.life); rec != nil {
		at.send(newsOf(rec))
		a.peers(at).KeepLastWords(at.run.life, rec, at.team.logs.Dir())
	}
}

// announceEarly tells the other nodes of a worker's failure while the other workers here are
// being stopped, which may take all of their grace. If another node was first, it returns that as news.
func (a *Agent) announceEarly(ctx context.Context, at *attempt, n news, act decide.Action) *news {
	if a.live != nil { // its Group stops no workers by itself
		at.run.wg.Go(func() { at.team.group.Close(syscall.SIGTERM, a.cfg.ShutdownTimeout) })
	}
	switch act {
	case decide.ActStopOthers:
		return nil
	case decide.ActAnnounceLater:
		a.announceLater(at, n)
		return nil
	}
	rec := a.newRecord(at, []*failure.ProcessFailure{n.cause}, nil, act == decide.ActAnnounceFinal)
	if other := a.put(ctx, at, rec); other != nil {
		return other
	}
	at.status.record, at.status.phase = rec, decide.Failing
	return nil
}

// newRecord makes this node's record.
func (a *Agent) newRecord(at *attempt, failures []*failure.ProcessFailure, err error, final bool) *peers.Record {
	rec := &peers.Record{Node: at.round.Rank, Rank: -1, Host: a.cfg.Host, Restarts: a.restarts,
		Final: final, Decision: at.status.verdict}
	if !final && !rec.Leaves() {
		rec.Restarts += 1 - at.paid()
	}
	if root := failure.NewReport(failure.ReportConfig{}, failures).Root(); root != nil {
		rec.SetRoot(root, at.round.ClockOffset)
	} else if err != nil {
		rec.Cause = err.Error()
	}
	return rec
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
// the workers of other hosts go on.
func (a *Agent) restart(at *attempt, rec *peers.Record, live bool) {
	a.emitFailure(at)
	if live {
		a.carriedOut(atOnce(at.status.verdict))
	} else {
		a.carriedOut(at.status.verdict)
	}
	failed := a.failed(at, Stopped, a.ownReport(at))
	a.restarts += 1 - at.paid()
	if rec != nil {
		a.restarts = max(a.restarts, rec.Restarts)
	}
	a.emit(at, RestartCounted{failed.Report.Root().Error(), failed.ReportFile, at.status.verdict, live})
}

// follow stops the workers because another node's have failed, and goes on with the
// count of that node.
func (a *Agent) follow(ctx context.Context, at *attempt, rec *peers.Record) {
	a.carriedOutElsewhere(at, rec.Decision)
	if rec.Leaves() {
		a.continueWithout(ctx, at, rec)
		return
	}
	a.log.Warn("workers failed on another host; restarting the worker group with it", "host", rec.Host, "rank", rec.Rank,
		"cause", rec.Cause, "restart", fmt.Sprintf("%d/%d", rec.Restarts, a.cfg.MaxRestarts))
	a.emit(at, Stopping{State: Stopped, Why: fmt.Sprintf("rank %d on %s: %s", rec.Rank, rec.Host, rec.Cause)})
	if failures, err := failure.Decode(rec.Failures, at.round.ClockOffset); err == nil && len(failures) > 0 {
		report := failure.NewReport(a.reportConfig(at), failures)
		a.emit(at, FailureExplained{report, a.writeReport(at, report)})
	}
	a.stopWorkers(ctx, at, syscall.SIGTERM)
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
	a.stopWorkers(ctx, at, syscall.SIGTERM)
	a.restarts = max(a.restarts, rec.Restarts)
}

// changed says what a change of the set of nodes means. Where the store has to be asked for
// that, changed returns no news; a goroutine asks and sends them.
func (a *Agent) changed(at *attempt, c rendezvous.Change) news {
	n := news{change: c}
	switch c.Kind {
	case rendezvous.NodesWaiting:
		n.ev = decide.EvNodesWaiting
		if at.status.phase == decide.Assigning || at.alone() {
			break
		}
		if at.status.lost != nil {
			n.change = *at.status.lost // which is why
		}
		return a.ask(at, n, a.cfg.PeerTimeout, a.whyWaiting)
	case rendezvous.Evicted, rendezvous.Suspended:
		n.ev = decide.EvEvicted
	case rendezvous.Disconnected:
		n.ev = decide.EvDisconnected
		if at.status.phase == decide.Finished {
			// Perhaps only because the agent that hosts the store has passed the
			// barrier first; word of that may still be on its way.
			at.run.wg.Go(func() {
				if at.outlives(a.cfg.PeerTimeout) {
					at.send(n)
				}
			})
			return news{}
		}
	case rendezvous.NodeLost, rendezvous.NodeLeft:
		if c.Rank < 0 {
			n.ev = decide.EvNodeGone // the one that held the rendezvous, and the store of the round with it
			break
		}
		if c.Rank >= at.round.WorldSize || c.Rank == at.round.Rank || at.status.gone[c.Rank] {
			return news{} // it has no part in the round, or no longer
		}
		at.status.gone[c.Rank] = true
		at.status.lost = &c
		if at.status.overdue && at.last() {
			n.ev = decide.EvBarrierTimedOut // nobody is left who needs this node
			break
		}
		n.ev = decide.EvNodeGone
		if at.status.phase == decide.Assigning && a.policy == nil {
			break
		}
		begun := at.status.phase != decide.Assigning
		return a.ask(at, n, a.cfg.PeerTimeout,
			func(ctx context.Context, at *attempt, n news) news { return a.whyGone(ctx, at, n, begun) })
	case rendezvous.Closed:
		if at.alone() {
			n.ev = decide.EvClosed
			break
		}
		begun := at.status.phase != decide.Assigning
		return a.ask(at, n, a.endPatience(),
			func(ctx context.Context, at *attempt, n news) news { return a.whyClosed(ctx, at, n, begun) })
	}
	return n
}

// endPatience is how long the agent looks for the reason why the job has ended: nothing else is
// to be done any more.
func (a *Agent) endPatience() time.Duration { return 5 * a.cfg.PeerTimeout }

// ask has a goroutine look in the store for the reason of news, and send them then. It
// returns none.
func (a *Agent) ask(at *attempt, n news, limit time.Duration, why func(context.Context, *attempt, news) news) news {
	at.run.wg.Go(func() {
		ctx, cancel := context.WithTimeout(at.run.life, limit)
		defer cancel()
		at.send(why(ctx, at, n))
	})
	return news{}
}

// whyGone completes the news that a node is gone: the failure that made it leave, whose
// news may come later, or whether its workers had succeeded, if the round has begun; and
// the name of its host, which only a policy needs.
func (a *Agent) whyGone(ctx context.Context, at *attempt, n news, begun bool) news {
	if begun {
		if rec := a.peers(at).Find(ctx); rec != nil && rec.Node != at.round.Rank {
			return newsOf(rec)
		}
		if a.peers(at).IsDone(ctx, n.change.Rank) {
			n.ev = decide.EvDoneNodeGone
		}
		if a.live != nil {
			if over, err := at.round.Store.Check(ctx, liveOverKey); err == nil && over {
				a.live.end()
			}
		}
	}
	if a.policy != nil {
		n.host, _ = a.peers(at).HostOf(ctx, n.change.Rank)
	}
	return n
}

// whyWaiting looks in the store for the reason why nodes wait: they may be nodes of this
// round that a failure has broken up, and the news of that failure may come later.
func (a *Agent) whyWaiting(ctx context.Context, at *attempt, n news) news {
	if rec := a.peers(at).Find(ctx); rec != nil {
		return newsOf(rec)
	}
	if a.policy != nil && n.change.Kind == rendezvous.NodeLost && n.change.Rank >= 0 {
		n.host, _ = a.peers(at).HostOf(ctx, n.change.Rank)
	}
	return n
}

// whyClosed looks in the store for the reason why a node closed the rendezvous, and whether that
// has succeeded, if the round has begun.
func (a *Agent) whyClosed(ctx context.Context, at *attempt, n news, begun bool) news {
	if rec := a.peers(at).Find(ctx); rec != nil {
		return newsOf(rec)
	}
	n.ev = decide.EvClosed
	if !begun {
		return n
	}
	if arrived, err := a.peers(at).AtBarrier(ctx); err == nil && arrived > 0 {
		n.ev = decide.EvClosedWhenDone
	}
	return n
}

// endedElsewhere stops the workers, if there are any, because another node has ended the job, without a record.
func (a *Agent) endedElsewhere(ctx context.Context, at *attempt, n news) (*Result, error) {
	a.stopWorkers(ctx, at, syscall.SIGTERM)
	who := "another node"
	if n.change.Node != "" {
		who = "node " + n.change.Node
	}
	return a.stopped(at, Failed),
		fmt.Errorf("%s has ended the job; its output should say why: %w", who, rendezvous.ErrClosed)
}

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
			return a.stopPreempted(ctx, last, rec), nil
		case rec.LostHost():
			return a.giveUp(ctx, last, newsOf(rec))
		case rec.Final:
			return a.fail(ctx, last, Failed, newsOf(rec))
		}
	}
	if last.status.phase == decide.Finished {
		a.log.Info("the job has ended; the workers of this host had succeeded")
		return a.succeeded(last), nil
	}
	return a.stopped(last, Failed),
		fmt.Errorf("another node has ended the job while this host waited for a new round; its output should say why: %w",
			rendezvous.ErrClosed)
}
