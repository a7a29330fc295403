package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// How a job goes on when workers or hosts are lost, or come (docs/internals/live.md):
//
//  1. An agent that loses a worker, or hears that a host is lost, keeps its other workers and
//     meets the other agents in a new round, as for a restart (continueInNewRound). The workers pause.
//     Whether that is the answer is decided where everything is: decide.Next.
//  2. In the round each agent says which workers it has at livePartPrefix and its group rank.
//     The agent with group rank 0 makes the list of all (lead), at livePlanKey.
//  3. Each agent hands it to its workers, which then reconfigure their process group (form).
//  4. Workers that start come in by another round once they are ready: who wants one sets
//     liveJoinKey, and the agent that has rank 0 asks for it, with the step at which all
//     pause. It does so once the workers of all agents are members, as the agents say
//     at liveMembersPrefix; workers that still reconfigure could only pause at once.
//  5. Workers that have no place in the membership, since their replica group is not whole,
//     wait until it is.
//
// The training ends when a worker says so, which it does when all have completed the last step.
// Then liveOverKey is set: no worker joins after that, and workers that are starting are stopped.
//
// An agent that cannot complete one of these steps ends its workers. That is a failure as any
// other: the group restarts.

const (
	livePartPrefix = "muster/live/"
	liveFormPrefix = "muster/live/form/"
	livePlanKey    = "muster/live/plan"
	liveJoinKey    = "muster/live/join"
	liveReadyKey   = "muster/live/ready" // how many workers are ready to join
	liveOverKey    = "muster/live/over"
	liveUrgentKey  = "muster/live/urge" // a host, for which the others are to pause at once

	liveMembersPrefix = "muster/live/together/"
)

// DefaultLiveTimeout is how long a worker may take to come to rest, or to take part in a new
// membership.
const DefaultLiveTimeout = live.Timeout

const (
	// maxPart bounds what an agent, and maxPlan what the plan says, in bytes; maxMembers the workers
	// of a host, and maxListed the elements of all lists of a plan.
	maxMembers = 4096
	maxPart    = 8 << 20
	maxPlan    = 64 << 20
	maxListed  = 1 << 22
)

// kept is the workers of an attempt that has ended without them.
type kept struct {
	team
	lost     map[int]process.Exit // workers that have failed, by local rank
	restarts int                  // that were counted before; the record of the loss counts one, too
}

// factsOfFailure finds out what decide.Next has to know of a worker's failure, and notes it, and those
// of other workers, unless the decision is about this one alone. The policy decides once it can.
func (a *Agent) factsOfFailure(at *attempt, n *news, f *decide.Facts) {
	n.cause = a.explainExit(at, n.exit, nil, func() *evidence.GPUFaults { return a.findXids(at, nil) }) // nvidia-smi takes too long
	f.Follows, f.Silent = n.cause.Stopped() || n.cause.LostPeer(), saysNothing(n.cause)
	f.Unsettled = a.policy != nil && n.waited == 0 && a.cfg.Policy.Unsettled(a.failureOf(at, n.cause))
	f.Member = n.stays || a.live == nil || a.live.isMember(n.exit.LocalRank)
	changes := f.Formed && !f.Over
	if f.Over && !f.Member || f.Formed && f.Unsettled {
		return // it is not needed any more, or looked at again
	}
	if changes && !f.Member && f.RestartsLeft > 0 {
		if f.All = a.reach(at, n.cause); !f.All {
			return // it is replaced; the others go on
		}
	}
	if a.live != nil {
		a.noteLoss(at, n.exit, n.cause)
		a.noteLosses(at)
		f.Left = len(a.live.left()) > 0
	}
	if changes && (f.Left || !f.Alone && f.RestartsLeft > 0) || !f.Follows && !f.Silent && !f.Unsettled {
		f.All = a.reach(at, n.cause)
	}
	f.Verdict = at.verdictAction()
}

// noteLoss notes that a worker of a live job has failed, and why.
func (a *Agent) noteLoss(at *attempt, x process.Exit, cause *failure.ProcessFailure) {
	a.live.ended(x.LocalRank)
	if _, known := at.live.lostWorkers[x.LocalRank]; !known {
		at.live.losses = append(at.live.losses, cause)
	}
	at.live.lostWorkers[x.LocalRank] = x
}

// noteLosses notes the workers that have failed since the last news of one.
func (a *Agent) noteLosses(at *attempt) {
	for {
		select {
		case x := <-at.team.group.Failed():
			a.noteLoss(at, x, a.explainExit(at, x, nil, nil))
		default:
			return
		}
	}
}

// hostJoins is why members change where a host waits.
const hostJoins = "a host joins"

// replaceFailed starts another worker in place of one that had no place in the group yet. If that
// cannot be done, the failure is news again.
func (a *Agent) replaceFailed(at *attempt, n *news) *news {
	a.carriedOut(atOnce(at.status.verdict))
	at.status.verdict = nil
	a.restarts++
	a.log.Warn("live: a worker failed before it joined the group; starting another", "cause", n.cause.Error())
	if n.stays = !a.replace(at, n.exit.LocalRank); n.stays {
		return n
	}
	return nil
}

// continueAfterTraining handles news after the training's end, which change nothing: a worker is not
// needed any more, nor a host. The others count a lost host at the exit barrier.
func (a *Agent) continueAfterTraining(at *attempt, n news, act decide.Action) {
	switch n.ev {
	case decide.EvFailing:
		a.live.ended(n.exit.LocalRank)
		at.exclude(n.exit)
		return
	case decide.EvLiveChange, decide.EvNodesWaiting:
		return
	}
	if n.ev == decide.EvNodeGone && n.change.Rank >= 0 {
		at.run.wg.Go(func() {
			if err := a.peers(at).CountGone(at.run.life, n.change.Rank); err != nil && at.run.life.Err() == nil {
				a.log.Debug("exit barrier: cannot count a node that is gone", "error", err)
			}
		})
	}
	a.log.Info("a host is lost after the training has ended; going on", a.changeAttrs(at, n.change)...)
	if act == decide.ActInterrupt { // ranks may wait for that host's
		a.pauseWorkers(&liveMessage{Type: "change", Urgent: true, Reason: n.why()})
	}
}

// continueInNewRound ends the attempt. With ActKeep the workers that are left pause, and the next
// round has them; with ActReturn, or if none is left by now, it starts new ones. The other nodes
// hear of it first, unless they know. If a record of theirs decides otherwise, it is returned as news.
func (a *Agent) continueInNewRound(ctx context.Context, at *attempt, n *news, act decide.Action) (other *news) {
	counted := a.restarts
	if rec := a.liveRecord(at, n); rec != nil {
		if other := a.put(ctx, at, rec); other != nil {
			return other
		}
		n.record = rec
	} else if n.record != nil {
		if theirs, err := failure.Decode(n.record.Failures, at.round.ClockOffset); err == nil {
			at.live.losses = append(at.live.losses, theirs...)
		}
		a.restarts = max(a.restarts, n.record.Restarts)
		a.carriedOutElsewhere(at, atOnce(n.record.Decision))
	}
	a.noteLosses(at)
	left := len(a.live.left()) > 0
	if n.ev == decide.EvFailing && at.alone() && !left {
		n.record = nil
		return n // the last one has failed meanwhile: next decides again
	}
	if last := at.live.formed.Load(); last != nil {
		paid := last.paid || n.record != nil && n.record.Rank >= 0 && n.record.Restarts > counted
		a.carried = &membership{ranks: last.ranks, pending: true, losses: slices.Concat(last.losses, at.live.losses), paid: paid}
	}
	if act == decide.ActReturn || !left && !a.live.isOver() {
		a.stopWorkers(ctx, at, syscall.SIGTERM)
		if n.ev == decide.EvFailing || n.ev == decide.EvFailed || n.ev == decide.EvLostPeers {
			a.explain(at, nil)
			a.restart(at, n.record, true)
		}
		return nil
	}
	a.keepWorkers(at, n)
	return nil
}

// liveRecord is what the other nodes have to hear before the workers of this one continue in a new
// round; nil if they know, since it is their news.
func (a *Agent) liveRecord(at *attempt, n *news) *peers.Record {
	rec := &peers.Record{Node: at.round.Rank, Host: a.cfg.Host, Rank: -1, Restarts: a.restarts, At: -1}
	switch {
	case n.ev == decide.EvLiveChange:
		rec.Cause, rec.At, rec.Fruitless = n.record.Cause, n.record.At, n.record.Fruitless
	case n.ev == decide.EvNodesWaiting && n.change.Kind == rendezvous.NodesWaiting:
		rec.Cause = hostJoins
	case n.ev == decide.EvFailing, n.ev == decide.EvFailed, n.ev == decide.EvLostPeers:
		failures := at.outcome.failures
		if n.ev == decide.EvFailing {
			failures = []*failure.ProcessFailure{n.cause}
		} else {
			at.live.losses = append(at.live.losses, failures...)
		}
		if rec = a.newRecord(at, failures, nil, false); a.restartsLeft() <= 0 {
			rec.Restarts = a.restarts // nobody is replaced
		}
		rec.At = -1
	default:
		return nil
	}
	rec.Live = true
	return rec
}

// keepWorkers ends the attempt, has its workers pause, and keeps them for the next one.
func (a *Agent) keepWorkers(at *attempt, n *news) {
	m := &liveMessage{Type: "change", Urgent: true}
	if r := n.record; r != nil && !r.Live {
		m.Reason = r.Who()
	} else if r != nil {
		m.Reason, m.Urgent, m.At = r.Who(), r.At < 0, max(r.At, 0)
	} else if m.Reason = n.why(); n.change.Node != "" {
		m.Reason = "host lost: " + n.change.Node
	}
	if n.ev != decide.EvPeerLive && n.ev != decide.EvPeerRestarts {
		a.carriedOut(atOnce(at.status.verdict))
	}
	a.log.Warn("live: the workers pause", "run_id", a.cfg.Rendezvous.RunID(), "round", at.round.Round,
		"cause", m.Reason, "workers_here", len(a.live.members()))
	a.emit(at, Resting{m.Reason})
	switch {
	case n.record != nil && n.record.Fruitless > 0:
		a.fruitless.Store(max(a.fruitless.Load(), int32(min(n.record.Fruitless, live.MostFruitless+1))))
	case n.ev != decide.EvLiveChange && n.ev != decide.EvNodesWaiting || n.record == nil || n.record.At >= 0:
		a.fruitless.Store(0)
	}
	a.pauseWorkers(m)
	at.live.mu.Lock()
	lost := maps.Clone(at.live.excluded)
	at.live.mu.Unlock()
	maps.Copy(lost, at.live.lostWorkers)
	a.kept = &kept{team: at.team, lost: lost, restarts: a.restarts}
	at.live.kept.Store(true)
	close(at.live.released)
}

// pauseWorkers begins a change of this host's members.
func (a *Agent) pauseWorkers(m *liveMessage) {
	w := a.live
	w.mu.Lock()
	w.change++
	m.Change = w.change
	w.mu.Unlock()
	w.send(w.members(), func(int) *liveMessage { return m })
}

// adopt goes on with workers that were kept, and starts others in place of those that failed.
func (a *Agent) adopt(at *attempt) {
	k := a.kept
	a.kept = nil
	ranks := at.team.ranks
	at.team, at.live.excluded = k.team, k.lost
	at.team.ranks = ranks
	for _, i := range slices.Sorted(maps.Keys(at.live.excluded)) {
		if k.restarts < a.cfg.MaxRestarts && !a.live.isOver() {
			k.restarts++
			a.restarts = max(a.restarts, k.restarts)
			a.replace(at, i)
		} else {
			a.live.forget(i)
		}
	}
	a.published.ran(at)
	a.emit(at, WorkersStarted{Step: Step{time.Now(), nil}, PIDs: at.team.group.PIDs(), Live: true, Kept: true})
}

// replace starts a worker in place of one that has failed, and reports whether it has.
func (a *Agent) replace(at *attempt, localRank int) bool {
	env := a.workerEnv(at, a.restarts, localRank)
	maps.Copy(env, a.live.env(localRank))
	err := at.team.group.Replace(localRank, a.cfg.Spec.Args(localRank, at.team.ranks.Base+localRank), env)
	if err != nil {
		a.live.forget(localRank)
		a.log.Warn("live: cannot start a worker in place of one that failed", "local_rank", localRank, "error", err)
		return false
	}
	at.live.mu.Lock()
	delete(at.live.excluded, localRank)
	at.live.mu.Unlock()
	if a.live.isOver() { // awaitEnd may not have seen this worker
		at.exclude(process.Exit{LocalRank: localRank, StoppedBy: syscall.SIGKILL})
		at.team.group.Signal(localRank, syscall.SIGKILL)
	}
	return true
}

// stopAsSpare ends the workers of a host for which the round has no place, once they have paused: those
// of the others finish their step with them. Later it begins anew.
func (a *Agent) stopAsSpare(ctx context.Context) {
	if k := a.kept; k != nil {
		a.log.Warn("live: this host waits as a spare; its workers are stopped", "run_id", a.cfg.Rendezvous.RunID())
		at := a.newAttempt(ctx)
		at.team = k.team
		_ = at.live.awaitRest(at.run.life, a.live.lastChange()) // if ctx has ended they are stopped at once
		at.close()
		a.dropKept(ctx)
	}
	a.carried = nil
}

// dropKept stops workers that were kept, if there is no round for them.
func (a *Agent) dropKept(ctx context.Context) {
	k := a.kept
	if k == nil {
		return
	}
	a.kept = nil
	closed := make(chan struct{})
	go func() {
		select {
		case <-a.cfg.Hurry:
			k.group.Kill()
		case <-closed:
		}
	}()
	k.group.Close(syscall.SIGTERM, a.cfg.ShutdownTimeout)
	close(closed)
	if res, err := k.group.Wait(context.WithoutCancel(ctx)); err == nil {
		a.published.ended(res.Exits)
	}
	a.finishLogs(ctx, &attempt{team: k.team})
}

// rank is that of a worker of this host.
func (at *attempt) rank(localRank int) int {
	if f := cmp.Or(at.live.formed.Load(), at.live.broken.Load()); f != nil {
		if rank, ok := f.ranks[localRank]; ok {
			return rank
		}
	}
	return at.team.ranks.Base + localRank
}

// localRank is that of the worker with a rank.
func (at *attempt) localRank(rank int) int {
	if f := at.live.formed.Load(); f != nil {
		for i, r := range f.ranks {
			if r == rank {
				return i
			}
		}
	}
	return rank - at.team.ranks.Base
}

// paid is how many restarts have been counted for a failure before it: a worker was lost, and then
// the others could not go on.
func (at *attempt) paid() int {
	if b := at.live.broken.Load(); b != nil && b.paid {
		return 1
	}
	return 0
}

// exclude has a worker's end be no failure.
func (at *attempt) exclude(x process.Exit) {
	at.live.mu.Lock()
	defer at.live.mu.Unlock()
	if _, known := at.live.excluded[x.LocalRank]; !known {
		at.live.excluded[x.LocalRank] = x
	}
}

// withoutExcluded leaves out of a result the workers without which the others have continued.
func (at *attempt) withoutExcluded(res *process.Result) *process.Result {
	at.live.mu.Lock()
	defer at.live.mu.Unlock()
	if len(at.live.excluded) == 0 {
		return res
	}
	r := *res
	r.Exits, r.Failures = maps.Clone(res.Exits), maps.Clone(res.Failures)
	for i := range at.live.excluded {
		delete(r.Exits, i)
		delete(r.Failures, i)
	}
	return &r
}
