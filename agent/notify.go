package agent

import (
	"cmp"
	"context"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/rendezvous"
)

// A notifier tells the other agents of a round what has happened on this host, and finds out what a change of their set
// means.
type notifier struct {
	a  *Agent
	at *attempt
}

// announce tells the other nodes that this one's workers failed, unless announceEarly has, and
// puts this node's record into n. If another node was first, whose record decides then,
// announce returns that as news.
func (t *notifier) announce(ctx context.Context, n *news, final bool) *news {
	if n.record == nil {
		n.record = t.at.status.record // of announceEarly
	}
	if n.record != nil && t.at.status.unwritten.Load() {
		other := t.put(ctx, n.record)
		if other != nil {
			t.at.status.phase = decide.Listening // nobody has heard what was decided here
		}
		return other
	}
	if n.record != nil || t.at.alone() && !t.a.cfg.Rendezvous.CanChange() {
		return nil
	}
	t.at.why.explain(n.err)
	n.record = t.newRecord(t.at.outcome.failures, n.err, final)
	other := t.put(ctx, n.record)
	if t.at.status.unwritten.Load() {
		other = t.put(ctx, n.record)
	}
	return other
}

// put writes a record, unless another node's is there, which it returns as news.
func (t *notifier) put(ctx context.Context, rec *peers.Record) *news {
	ctx, cancel := context.WithTimeout(ctx, t.a.cfg.PeerTimeout)
	defer cancel()
	first, err := t.a.peers(t.at).Put(ctx, rec)
	t.at.status.unwritten.Store(err != nil)
	switch {
	case err != nil:
		t.a.log.Warn("cannot tell the other nodes about the failure", "error", err)
		return nil
	case first == nil, first == rec, rec.Live && newsOf(first).ev == decide.EvPeerLive: // it has the others do the same
		return nil
	}
	other := newsOf(first)
	return &other
}

// hear waits for another node's record, and sends it.
func (t *notifier) hear() {
	if rec := t.a.peers(t.at).Hear(t.at.run.life); rec != nil {
		t.at.send(newsOf(rec))
	}
}

// announceEarly tells the other nodes of a worker's failure while the other workers here are
// being stopped, which may take all of their grace. If another node was first, it returns that as news.
func (t *notifier) announceEarly(ctx context.Context, n news, act decide.Action) *news {
	if t.a.live != nil { // its Group stops no workers by itself
		t.at.run.wg.Go(func() { t.at.team.group.Close(syscall.SIGTERM, t.a.cfg.ShutdownTimeout) })
	}
	switch act {
	case decide.ActStopOthers:
		return nil
	case decide.ActAnnounceLater:
		t.announceLater(n)
		return nil
	}
	rec := t.newRecord([]*failure.ProcessFailure{n.cause}, nil, act == decide.ActAnnounceFinal)
	if other := t.put(ctx, rec); other != nil {
		return other
	}
	t.at.status.record, t.at.status.phase = rec, decide.Failing
	return nil
}

// newRecord makes this node's record.
func (t *notifier) newRecord(failures []*failure.ProcessFailure, err error, final bool) *peers.Record {
	rec := &peers.Record{Node: t.at.round.Rank, Rank: -1, Host: t.a.cfg.Host, Restarts: t.a.restarts.used,
		Final: final, Decision: t.at.status.verdict}
	if !final && !rec.Leaves() {
		rec.Restarts += 1 - t.at.paid()
	}
	if root := failure.NewReport(failure.ReportConfig{}, failures).Root(); root != nil {
		rec.SetRoot(root, t.at.round.ClockOffset)
	} else if err != nil {
		rec.Cause = err.Error()
	}
	return rec
}

// changed says what a change of the set of nodes means. Where the store has to be asked for
// that, changed returns no news; a goroutine asks and sends them.
func (t *notifier) changed(c rendezvous.Change) news {
	n := news{change: c}
	switch c.Kind {
	case rendezvous.NodesWaiting:
		n.ev = decide.EvNodesWaiting
		if t.at.status.phase == decide.Assigning || t.at.alone() {
			break
		}
		if t.at.status.lost != nil {
			n.change = *t.at.status.lost // which is why
		}
		return t.ask(n, t.a.cfg.PeerTimeout, t.whyWaiting)
	case rendezvous.Evicted, rendezvous.Suspended:
		n.ev = decide.EvEvicted
	case rendezvous.Disconnected:
		n.ev = decide.EvDisconnected
		if t.at.status.phase == decide.Finished {
			// Perhaps only because the agent that hosts the store has passed the
			// barrier first; word of that may still be on its way.
			t.at.run.wg.Go(func() {
				if t.at.outlives(t.a.cfg.PeerTimeout) {
					t.at.send(n)
				}
			})
			return news{}
		}
	case rendezvous.NodeLost, rendezvous.NodeLeft:
		if c.Rank < 0 {
			n.ev = decide.EvNodeGone // the one that held the rendezvous, and the store of the round with it
			break
		}
		if c.Rank >= t.at.round.WorldSize || c.Rank == t.at.round.Rank || t.at.status.gone[c.Rank] {
			return news{} // it has no part in the round, or no longer
		}
		t.at.status.gone[c.Rank] = true
		t.at.status.lost = &c
		if t.at.status.overdue && t.at.last() {
			n.ev = decide.EvBarrierTimedOut // nobody is left who needs this node
			break
		}
		n.ev = decide.EvNodeGone
		if t.at.status.phase == decide.Assigning && t.a.judge.engine == nil {
			break
		}
		begun := t.at.status.phase != decide.Assigning
		return t.ask(n, t.a.cfg.PeerTimeout,
			func(ctx context.Context, n news) news { return t.whyGone(ctx, n, begun) })
	case rendezvous.Closed:
		if t.at.alone() {
			n.ev = decide.EvClosed
			break
		}
		begun := t.at.status.phase != decide.Assigning
		return t.ask(n, t.a.endPatience(),
			func(ctx context.Context, n news) news { return t.whyClosed(ctx, n, begun) })
	}
	return n
}

// ask has a goroutine look in the store for the reason of news, and send them then. It
// returns none. The goroutine of Run must not wait for the store itself: the loss of a host may
// be that of the store, and meanwhile a worker may fail.
func (t *notifier) ask(n news, limit time.Duration, why func(context.Context, news) news) news {
	t.at.run.wg.Go(func() {
		ctx, cancel := context.WithTimeout(t.at.run.life, limit)
		defer cancel()
		t.at.send(why(ctx, n))
	})
	return news{}
}

// whyGone completes the news that a node is gone: the failure that made it leave, whose
// news may come later, or whether its workers had succeeded, if the round has begun; and
// the name of its host, which only a policy needs.
func (t *notifier) whyGone(ctx context.Context, n news, begun bool) news {
	if begun {
		if rec := t.a.peers(t.at).Find(ctx); rec != nil && rec.Node != t.at.round.Rank {
			return newsOf(rec)
		}
		if t.a.peers(t.at).IsDone(ctx, n.change.Rank) {
			n.ev = decide.EvDoneNodeGone
		}
		if t.a.live != nil {
			if over, err := t.at.round.Store.Check(ctx, liveOverKey); err == nil && over {
				t.a.live.Update(func(s *link.State) { s.Over = true })
			}
		}
	}
	if t.a.judge.engine != nil {
		n.host, _ = t.a.peers(t.at).HostOf(ctx, n.change.Rank)
	}
	return n
}

// whyWaiting looks in the store for the reason why nodes wait: they may be nodes of this
// round that a failure has broken up, and the news of that failure may come later.
func (t *notifier) whyWaiting(ctx context.Context, n news) news {
	if rec := t.a.peers(t.at).Find(ctx); rec != nil {
		return newsOf(rec)
	}
	if t.a.judge.engine != nil && n.change.Kind == rendezvous.NodeLost && n.change.Rank >= 0 {
		n.host, _ = t.a.peers(t.at).HostOf(ctx, n.change.Rank)
	}
	return n
}

// whyClosed looks in the store for the reason why a node closed the rendezvous, and whether that
// has succeeded, if the round has begun.
func (t *notifier) whyClosed(ctx context.Context, n news, begun bool) news {
	if rec := t.a.peers(t.at).Find(ctx); rec != nil {
		return newsOf(rec)
	}
	n.ev = decide.EvClosed
	if !begun {
		return n
	}
	if arrived, err := t.a.peers(t.at).AtBarrier(ctx); err == nil && arrived > 0 {
		n.ev = decide.EvClosedWhenDone
	}
	return n
}

// announceLater sends the news of a worker's failure again, when the rest of its stderr should
// be there: each time after twice as long.
func (t *notifier) announceLater(n news) {
	n.waited = max(stderrWait, 2*n.waited)
	t.at.run.wg.Go(func() {
		if t.at.outlives(n.waited) {
			t.at.send(n)
		}
	})
}

// announcePreemption tells the other nodes to stop, too.
func (t *notifier) announcePreemption(p *failure.Preemption) {
	rec := &peers.Record{
		Node: t.at.round.Rank, Rank: -1, Host: p.Host, Restarts: t.a.restarts.used, Final: true,
		Cause: p.String(), Signal: int(p.Signal), Time: p.Time.Add(t.at.round.ClockOffset),
	}
	if !t.at.alone() {
		t.put(context.WithoutCancel(t.at.run.life), rec)
	}
	t.a.endPreempted(rec)
}

// announceRejoin tells the other nodes why all start again, where they cannot know that yet, and puts
// the record into n: somebody here wants new workers, or nodes wait for a live job whose workers are
// no group yet. If another node was first, whose record decides then, it returns that as news.
func (t *notifier) announceRejoin(ctx context.Context, n *news) *news {
	rec := &peers.Record{Node: t.at.round.Rank, Rank: -1, Host: t.a.cfg.Host, Restarts: t.a.restarts.used}
	switch {
	case n.ev == decide.EvAsked && n.record == nil:
		rec.Asked, rec.Cause = true, "muster restart on "+cmp.Or(n.host, t.a.cfg.Host)+" asks for new workers"
		n.record = rec
	case n.ev == decide.EvNodesWaiting && t.a.live != nil && t.at.status.phase == decide.Running:
		rec.Live, rec.At, rec.Cause = true, -1, n.why()
	default:
		return nil
	}
	if t.at.alone() {
		return nil
	}
	return t.put(ctx, rec)
}

// logRejoin logs why a new round begins.
func (t *notifier) logRejoin(n news) {
	if n.ev == decide.EvAsked {
		n.change.Rank = -1
	}
	why := n.why()
	t.a.log.Warn(why+"; stopping the workers for a new round, no restart is counted",
		t.changeAttrs(n.change)...)
	t.a.emit(t.at, Stopping{Stopped, "for a new round", why})
}

// logStays logs why the workers continue although something has happened.
func (t *notifier) logStays(ctx context.Context, n news) {
	switch n.ev {
	case decide.EvBarrierOverdue:
		t.a.log.Warn(
			"exit barrier: some nodes did not finish in time; the others need this host for their rendezvous or their workers' store, so it stays",
			"missing", strings.Join(t.a.peers(t.at).Missing(ctx), ", "), "elapsed", time.Since(t.at.status.since))
	case decide.EvDoneNodeGone:
		t.a.log.Info("a node of the round is gone, after its workers had succeeded; going on", t.changeAttrs(n.change)...)
	case decide.EvClosedWhenDone:
		t.a.log.Warn(
			"a node whose workers had succeeded has closed the rendezvous; the workers here continue, but no round can follow",
			t.changeAttrs(n.change)...)
	}
}

func (t *notifier) changeAttrs(c rendezvous.Change) []any {
	attrs := []any{"run_id", t.a.cfg.Rendezvous.RunID(), "round", t.at.round.Round}
	if c.Node != "" {
		attrs = append(attrs, "node", c.Node)
	}
	if c.Rank >= 0 {
		attrs = append(attrs, "group_rank", c.Rank)
	}
	return append(attrs, decisionAttr(t.at.status.verdict)...)
}

// emitFailed emits that the attempt has failed: by root or, if that is nil, by the loss of a host.
func (t *notifier) emitFailed(root *failure.ProcessFailure, f policy.Failure) {
	f.Restarts, f.Progress = t.a.restarts.used, t.a.judge.progressOf(t.at)
	t.a.emit(t.at, AttemptFailed{f, root, t.at.status.verdict})
}

// emitFailure emits the failure of this host's workers, once.
func (t *notifier) emitFailure() {
	root := t.at.why.ownReport().Root()
	if root == nil || root.Stopped() || t.at.status.emitted {
		return
	}
	t.at.status.emitted = true
	t.emitFailed(root, t.a.judge.failureOf(t.at, root))
}

// emitLoss emits that the attempt ends because a host was lost, if that is why.
func (t *notifier) emitLoss(n news) {
	if n.change.Kind == rendezvous.NodeLost {
		t.emitFailed(nil, t.a.judge.lossOf(t.at, cmp.Or(t.at.status.lostHost, n.change.Node)))
	}
}

// peers are the agents of an attempt's round.
func (a *Agent) peers(at *attempt) *peers.Round {
	return &peers.Round{Info: at.round, Host: a.cfg.Host, Timeout: a.cfg.PeerTimeout, Log: a.log}
}
