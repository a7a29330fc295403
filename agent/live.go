package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/decide"
	"github.com/muster-run/muster/internal/live"
	"github.com/muster-run/muster/internal/pyjson"
	"github.com/muster-run/muster/internal/sleep"
	"github.com/muster-run/muster/internal/text"
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
	if _, known := at.lostWorkers[x.LocalRank]; !known {
		at.losses = append(at.losses, cause)
	}
	at.lostWorkers[x.LocalRank] = x
}

// noteLosses notes the workers that have failed since the last news of one.
func (a *Agent) noteLosses(at *attempt) {
	for {
		select {
		case x := <-at.group.Failed():
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
	a.carriedOut(atOnce(at.verdict))
	at.verdict = nil
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
		at.wg.Go(func() {
			if err := excuse(at.life, at.round.Store, n.change.Rank, at.round.WorldSize); err != nil && at.life.Err() == nil {
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
			at.losses = append(at.losses, theirs...)
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
	if last := at.formed.Load(); last != nil {
		paid := last.paid || n.record != nil && n.record.Rank >= 0 && n.record.Restarts > counted
		a.carried = &membership{ranks: last.ranks, pending: true, losses: slices.Concat(last.losses, at.losses), paid: paid}
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
func (a *Agent) liveRecord(at *attempt, n *news) *record {
	rec := &record{Node: at.round.Rank, Host: a.cfg.Host, Rank: -1, Restarts: a.restarts, At: -1}
	switch {
	case n.ev == decide.EvLiveChange:
		rec.Cause, rec.At, rec.Fruitless = n.record.Cause, n.record.At, n.record.Fruitless
	case n.ev == decide.EvNodesWaiting && n.change.Kind == rendezvous.NodesWaiting:
		rec.Cause = hostJoins
	case n.ev == decide.EvFailing, n.ev == decide.EvFailed, n.ev == decide.EvLostPeers:
		failures := at.failures
		if n.ev == decide.EvFailing {
			failures = []*failure.ProcessFailure{n.cause}
		} else {
			at.losses = append(at.losses, failures...)
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
		m.Reason = r.who()
	} else if r != nil {
		m.Reason, m.Urgent, m.At = r.who(), r.At < 0, max(r.At, 0)
	} else if m.Reason = n.why(); n.change.Node != "" {
		m.Reason = "host lost: " + n.change.Node
	}
	if n.ev != decide.EvPeerLive && n.ev != decide.EvPeerRestarts {
		a.carriedOut(atOnce(at.verdict))
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
	at.mu.Lock()
	lost := maps.Clone(at.excluded)
	at.mu.Unlock()
	maps.Copy(lost, at.lostWorkers)
	a.kept = &kept{team: at.team, lost: lost, restarts: a.restarts}
	at.kept.Store(true)
	close(at.released)
}

// who is the record's cause with the worker that it is about.
func (r *record) who() string {
	if r.Rank < 0 {
		return r.Cause
	}
	return fmt.Sprintf("rank %d on %s: %s", r.Rank, r.Host, r.Cause)
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

// planChange asks for a change that nobody needs at once. It begins at a step, unless the workers of
// some host are no members in time.
func (a *Agent) planChange(ctx context.Context, at *attempt, change int, cause string) error {
	rec := &record{Cause: cause, At: -1}
	if a.awaitMembers(ctx, at) {
		for {
			step, err := a.meetingStep(ctx, change)
			if rec.At = step; err == nil || ctx.Err() != nil {
				break
			}
		}
	}
	if ctx.Err() == nil {
		at.send(news{ev: decide.EvLiveChange, record: rec})
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// awaitMembers waits until the workers of all agents are members, and reports whether they are.
func (a *Agent) awaitMembers(ctx context.Context, at *attempt) bool {
	if at.alone() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.LiveTimeout)
	defer cancel()
	for i := range at.round.WorldSize {
		if _, err := patientGet(ctx, at.round.Store, liveMembersPrefix+strconv.Itoa(i)); err != nil {
			return false
		}
	}
	return true
}

// meetingStep is the step at which workers can come to rest all together; -1 if they cannot.
func (a *Agent) meetingStep(ctx context.Context, change int) (step int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	w, members := a.live, a.live.members()
	w.mu.Lock()
	for _, x := range members {
		x.At = nil
	}
	w.mu.Unlock()
	w.send(members, func(int) *liveMessage { return &liveMessage{Type: "where", Said: live.Said{Change: change}} })
	err = w.await(ctx, func() (all bool) {
		step, all = w.host.Meeting(change)
		return all
	})
	return step, err
}

// adopt goes on with workers that were kept, and starts others in place of those that failed.
func (a *Agent) adopt(at *attempt) {
	k := a.kept
	a.kept = nil
	ranks := at.ranks
	at.team, at.excluded = k.team, k.lost
	at.ranks = ranks
	for _, i := range slices.Sorted(maps.Keys(at.excluded)) {
		if k.restarts < a.cfg.MaxRestarts && !a.live.isOver() {
			k.restarts++
			a.restarts = max(a.restarts, k.restarts)
			a.replace(at, i)
		} else {
			a.live.forget(i)
		}
	}
	a.published.ran(at)
	a.emit(at, WorkersStarted{Step: Step{time.Now(), nil}, PIDs: at.group.PIDs(), Live: true, Kept: true})
}

// replace starts a worker in place of one that has failed, and reports whether it has.
func (a *Agent) replace(at *attempt, localRank int) bool {
	env := a.workerEnv(at, a.restarts, localRank)
	maps.Copy(env, a.live.env(localRank))
	err := at.group.Replace(localRank, a.cfg.Spec.Args(localRank, at.ranks.Base+localRank), env)
	if err != nil {
		a.live.forget(localRank)
		a.log.Warn("live: cannot start a worker in place of one that failed", "local_rank", localRank, "error", err)
		return false
	}
	at.mu.Lock()
	delete(at.excluded, localRank)
	at.mu.Unlock()
	if a.live.isOver() { // awaitEnd may not have seen this worker
		at.exclude(process.Exit{LocalRank: localRank, StoppedBy: syscall.SIGKILL})
		at.group.Signal(localRank, syscall.SIGKILL)
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
		_ = a.awaitRest(at.life, at, a.live.lastChange()) // if ctx has ended they are stopped at once
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

// errOver is why nothing is formed any more, errNewer why what was decided is not done, and
// errStore what is wrong where the store of the round may have ended with its host.
var (
	errOver  = errors.New("the training has ended")
	errNewer = errors.New("the members of this host change again")
	errStore = errors.New("cannot agree on the workers of all hosts in the store of the round; check that its host is up")
)

// form brings the workers of a round together, after a change of this host's members. It runs
// as long as the round does, and a moment of the next change.
func (a *Agent) form(at *attempt, change int, had bool) {
	forming, end := context.WithCancelCause(at.life)
	defer end(nil)
	at.wg.Go(func() { a.awaitEnd(at, end) })
	err := a.formOnce(forming, at, change, had)
	for err == nil {
		err = a.watchLive(forming, at, change)
	}
	switch {
	case errors.Is(err, errNewer):
		<-forming.Done()
	case errors.Is(err, errStore): // the loss of a host is news of its own
		_ = sleep.For(forming, a.cfg.PeerTimeout)
	}
	if forming.Err() != nil {
		return
	}
	a.log.Warn("live: the workers cannot resume; they are stopped", "error", err)
	if f := at.formed.Swap(nil); f != nil && len(f.losses) > 0 {
		at.broken.Store(f)
	}
	for i := range a.live.left() {
		at.evidence.NoteDeadline(i, failure.LivePrefix+text.Line(err.Error(), maxText))
	}
	at.group.Kill()
}

// whenSet calls do, with the lock of liveWorkers held, when another agent has set a key of the round.
func (a *Agent) whenSet(ctx context.Context, at *attempt, key string, do func()) {
	if at.round == nil || at.alone() { // a spare is in no round
		return
	}
	at.wg.Go(func() {
		if _, err := patientGet(ctx, at.round.Store, key); err == nil {
			a.live.update(do)
		}
	})
}

// awaitEnd waits until the training has ended on some host, and tells the others and this host's
// workers, as long as the round lives.
func (a *Agent) awaitEnd(at *attempt, end context.CancelCauseFunc) {
	w := a.live
	a.whenSet(at.life, at, liveOverKey, func() { w.over = true })
	if w.await(at.life, func() bool { return w.over }) != nil {
		return
	}
	end(errOver)
	if !at.alone() {
		if err := at.round.Store.Set(at.life, liveOverKey, []byte(a.cfg.Host)); err != nil {
			a.log.Warn("live: cannot tell the other hosts that the training has ended", "error", err)
		}
	}
	w.send(w.members(), func(int) *liveMessage { return &liveMessage{Type: "over"} })
	starting := w.each(func(x *liveWorker) bool { return !x.Gone && x.Ready == nil })
	for i := range w.each(func(x *liveWorker) bool { return !x.Member && !x.Gone }) {
		it := "waits for others"
		if starting[i] != nil {
			it = "is starting"
		}
		a.log.Warn("live: the training has ended without one worker; stopping it", "local_rank", i, "it", it)
		at.exclude(process.Exit{LocalRank: i, StoppedBy: syscall.SIGKILL})
		at.group.Signal(i, syscall.SIGKILL)
	}
}

// patience is how long the agent waits in silence for workers to come to their first membership.
const patience = 30 * time.Second

// formOnce makes the membership of the round, and hands it to this host's workers.
func (a *Agent) formOnce(ctx context.Context, at *attempt, change int, had bool) error {
	began := time.Now()
	if had {
		if err := a.awaitRest(ctx, at, change); err != nil {
			return err
		}
		waiting, told := context.WithCancel(ctx)
		defer told()
		at.wg.Go(func() {
			if sleep.For(waiting, live.InterruptAfter) == nil {
				a.interruptOthers(waiting, at)
			}
		})
	}
	part, err := a.livePart(change)
	var plan *live.Plan
	if err == nil {
		plan, err = a.agree(ctx, at, livePartPrefix, part)
	}
	if err == nil && plan.Form {
		if err := a.awaitStart(ctx, part.Starting); err != nil {
			return err
		}
		if part, err = a.livePart(change); err == nil {
			plan, err = a.agree(ctx, at, liveFormPrefix, part)
		}
	}
	if err != nil {
		return err
	}
	if err := plan.Check(at.round.WorldSize); err != nil {
		return err
	}
	return a.reconfigure(ctx, at, plan, change, began)
}

// awaitStart waits until no worker has still to start.
func (a *Agent) awaitStart(ctx context.Context, starting int) error {
	var said []int
	for starting > 0 {
		soon, cancel := context.WithTimeout(ctx, patience)
		err := a.live.await(soon, a.live.host.Settled)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var missing []int
		for i := range a.live.each(func(x *liveWorker) bool { return !x.Gone && x.Ready == nil }) {
			missing = append(missing, i)
		}
		if slices.Sort(missing); !slices.Equal(missing, said) {
			a.log.Warn("live: the job waits for workers to call muster.live.join", "local_ranks", missing)
			said = missing
		}
	}
	return nil
}

// awaitRest waits until the members of this host are at rest, and kills those that are not in
// time.
func (a *Agent) awaitRest(ctx context.Context, at *attempt, change int) error {
	w, rest := a.live, live.Rest{Change: change, Until: time.Now().Add(a.cfg.LiveTimeout)}
	waiting, rested := context.WithCancel(ctx)
	defer rested()
	a.whenSet(waiting, at, liveUrgentKey, func() { rest.Others = true })
	for {
		w.mu.Lock()
		step, until := rest.Next(w.host, time.Now())
		others := rest.Others
		news := w.news
		w.mu.Unlock()
		resting := func(x *liveWorker) bool { return x.Resting(change) }
		switch step {
		case live.Rested:
			return context.Cause(ctx)
		case live.Kill:
			now := time.Now()
			a.killLate(ctx, at, w.members(), "does not pause", func(x *liveWorker) bool { return !x.Late(change, now) })
			continue
		case live.Interrupt:
			w.send(w.each(func(x *liveWorker) bool { return x.Member && !x.Gone && !resting(x) }), func(int) *liveMessage {
				return &liveMessage{Type: "change", Said: live.Said{Change: change}, Urgent: true,
					Reason: "others are at rest already"}
			})
			if !others {
				at.wg.Go(func() { a.interruptOthers(waiting, at) })
			}
			continue
		}
		alarm := time.NewTimer(time.Until(until))
		select {
		case <-news:
		case <-alarm.C:
		case <-ctx.Done():
		}
		alarm.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// interruptOthers has the workers of the other hosts pause at once: they may be in a collective
// with those of this host, which are not.
func (a *Agent) interruptOthers(ctx context.Context, at *attempt) {
	if at.round == nil || at.alone() {
		return
	}
	if err := at.round.Store.Set(ctx, liveUrgentKey, []byte(a.cfg.Host)); err != nil && ctx.Err() == nil {
		a.log.Debug("live: cannot tell the other hosts that the workers here wait", "error", err)
	}
}

// killLate kills the workers that have not done in time what they had to, with evidence of what they
// did instead. They count as lost.
func (a *Agent) killLate(ctx context.Context, at *attempt, of map[int]*liveWorker, what string,
	done func(*liveWorker) bool) {
	w := a.live
	late := func(yield func(int, *liveWorker) bool) {
		for i, x := range of {
			if !x.Gone && !done(x) && !yield(i, x) {
				return
			}
		}
	}
	why := fmt.Sprintf("%s within %v", what, a.cfg.LiveTimeout)
	all, pids := at.group.PIDs(), map[int]int{}
	w.mu.Lock()
	for i := range late {
		pids[i] = all[i]
	}
	w.mu.Unlock()
	if r := at.evidence.Examine(ctx, "live change: a worker "+why, pids); r != nil {
		why += ": " + r.Summary()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range late {
		a.log.Warn("live: killing a worker, because the others wait for it", "local_rank", i, "it", what,
			"timeout", a.cfg.LiveTimeout)
		at.evidence.NoteDeadline(i, "live change: it "+why)
		x.Gone = true
		at.wg.Go(func() { at.group.Signal(i, syscall.SIGKILL) })
	}
}

// livePart is what this agent says of its workers, all of which rest for the change.
func (a *Agent) livePart(change int) (live.Part, error) {
	a.live.mu.Lock()
	defer a.live.mu.Unlock()
	if a.live.change != change {
		return live.Part{}, errNewer
	}
	return a.live.host.Part(change), nil
}

// agree tells the others what this agent has, and returns the plan of all.
func (a *Agent) agree(ctx context.Context, at *attempt, prefix string, part live.Part) (*live.Plan, error) {
	if at.alone() {
		plan := live.Agree([]live.Part{part})
		plan.UUID = live.UUID(at.round.Round, rand.Uint32())
		return plan, context.Cause(ctx)
	}
	s, n := at.round.Store, at.round.WorldSize
	said, err := json.Marshal(part)
	if err == nil {
		err = s.Set(ctx, prefix+strconv.Itoa(at.round.Rank), said)
	}
	planKey := livePlanKey + prefix[len(livePartPrefix):]
	if err == nil && at.round.Rank == 0 {
		err = a.lead(ctx, at, prefix, planKey, n)
	}
	var found []byte
	if err == nil {
		found, err = patientGet(ctx, s, planKey)
	}
	plan := &live.Plan{}
	if err == nil {
		err = bounded(planKey, found, maxPlan, maxListed, plan)
	}
	return plan, storeError(err)
}

// bounded decodes JSON of so many bytes and elements of lists at most.
func bounded(key string, found []byte, bytes, elements int, v any) error {
	if len(found) > bytes {
		return fmt.Errorf("%s holds %d bytes, more than %d", key, len(found), bytes)
	}
	if outer, inner := pyjson.Elements(found); outer+inner > elements {
		return fmt.Errorf("%s holds lists of %d elements, more than %d", key, outer+inner, elements)
	}
	return json.Unmarshal(found, v)
}

func storeError(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %w", errStore, err)
	}
	return err
}

// lead makes the plan of all agents.
func (a *Agent) lead(ctx context.Context, at *attempt, prefix, planKey string, n int) error {
	parts := make([]live.Part, n)
	for i := range parts {
		key := prefix + strconv.Itoa(i)
		text, err := patientGet(ctx, at.round.Store, key)
		if err == nil {
			err = bounded(key, text, maxPart, maxMembers, &parts[i])
		}
		if err != nil {
			return err
		}
	}
	plan := live.Agree(parts)
	plan.UUID = live.UUID(at.round.Round, rand.Uint32())
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	return at.round.Store.Set(ctx, planKey, text)
}

// reconfigure tells this host's members of their ranks.
func (a *Agent) reconfigure(ctx context.Context, at *attempt, plan *live.Plan, change int, began time.Time) error {
	w := a.live
	w.mu.Lock()
	if w.change != change || w.over { // a worker that is not a member yet would not hear of it
		w.mu.Unlock()
		return errNewer
	}
	ranks, lost := w.host.Place(plan, at.round.Rank)
	to := map[int]*liveWorker{}
	for local := range ranks {
		to[local] = w.workers[local]
	}
	w.mu.Unlock()
	if lost >= 0 {
		return a.changeAgain(ctx, at,
			fmt.Sprintf("the worker with local rank %d on %s ended as it was to join", lost, a.cfg.Host))
	}
	at.formed.Store(&membership{ranks: ranks, leader: plan.Leader() == at.round.Rank,
		lacks: plan.Lacks, locals: plan.Locals})
	a.published.part(at, ranks)
	a.warnOfLoss(at, plan)
	said := live.Said{Change: change, Lineage: cmp.Or(plan.Lineage, plan.UUID)} // a state that nobody had begins here
	w.send(to, func(local int) *liveMessage {
		return &liveMessage{Type: "members", Said: said, liveMembers: &liveMembers{
			UUID: plan.UUID, Rank: ranks[local], World: len(plan.Handles), Handles: plan.Handles, Steps: plan.Steps,
			Source: plan.Source, Joined: plan.Joined, Groups: plan.Groups, Env: a.rankEnv(at, plan, local, ranks[local]),
			Timeout: a.cfg.LiveTimeout.Seconds(),
		}}
	})
	if all, err := a.awaitTaken(ctx, at, plan, change, ranks, to); err != nil || !all {
		return err // what is wrong with one is news
	}
	if !at.alone() {
		if err := at.round.Store.Set(ctx, liveMembersPrefix+strconv.Itoa(at.round.Rank), []byte(a.cfg.Host)); err != nil {
			return storeError(err)
		}
	}
	a.log.Warn("live: the workers resume", "round", at.round.Round, "world_size", len(plan.Handles),
		"joined", len(plan.Joined), "here", len(to), "took", time.Since(began).Round(time.Millisecond))
	a.emitElsewhere(Reconfigured{len(plan.Handles), len(plan.Handles) - len(plan.Joined)})
	return nil
}

// awaitTaken waits until this host's members have taken part in a change, and reports whether they
// have. It kills those that do not in time: first those that join.
func (a *Agent) awaitTaken(ctx context.Context, at *attempt, plan *live.Plan, change int, ranks map[int]int,
	members map[int]*liveWorker) (all bool, err error) {
	var failed *live.Said
	taken := func(limit time.Duration) error {
		soon, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return a.live.await(soon, func() (all bool) {
			all, failed = a.live.host.Taken(change, ranks)
			return all
		})
	}
	late := func(of map[int]*liveWorker) {
		a.killLate(ctx, at, of, "does not take part", func(x *liveWorker) bool { return x.TookPart(change) })
	}
	err = taken(a.cfg.LiveTimeout)
	if n := len(plan.Joined); err != nil && ctx.Err() == nil && n > 0 && n < len(plan.Handles) {
		// They may wait for one that joins, on whatever host, which is no reason to lose the state.
		joins := maps.Clone(members)
		maps.DeleteFunc(joins, func(local int, _ *liveWorker) bool { return !slices.Contains(plan.Joined, ranks[local]) })
		late(joins)
		err = taken(a.cfg.PeerTimeout)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return false, err
	case err != nil:
		late(members)
		return false, nil
	}
	return failed == nil, nil
}

// warnOfLoss notes where a membership begins, and says in the log if members have completed steps that
// are lost.
func (a *Agent) warnOfLoss(at *attempt, plan *live.Plan) {
	most, step := slices.Max(plan.Steps), plan.Steps[max(plan.Source, 0)]
	if again := a.live.reached(most); again && len(plan.Joined) == len(plan.Handles) {
		a.log.Warn("live: no worker with the state of the training is left; the training starts over",
			"step", most)
	}
	if most-step > 1 && plan.Leader() == at.round.Rank {
		a.log.Warn("live: a worker that has completed more steps comes back; they are lost, because it takes the others' state",
			"step", step, "lost", most-step)
	}
}

// rankEnv is what of a worker's environment changes with its rank.
func (a *Agent) rankEnv(at *attempt, plan *live.Plan, localRank, rank int) map[string]string {
	n := strconv.Itoa(len(plan.Handles))
	return map[string]string{
		"RANK": strconv.Itoa(rank), "WORLD_SIZE": n, "ROLE_RANK": strconv.Itoa(rank), "ROLE_WORLD_SIZE": n,
		"LOCAL_RANK": strconv.Itoa(localRank), "LOCAL_WORLD_SIZE": strconv.Itoa(len(plan.Locals[at.round.Rank])),
		"GROUP_RANK": strconv.Itoa(at.round.Rank), "GROUP_WORLD_SIZE": strconv.Itoa(at.round.WorldSize),
		"MASTER_ADDR": at.round.MasterAddr, "MASTER_PORT": strconv.Itoa(at.round.MasterPort),
	}
}

// A membership is that of a round, as far as this host has to know.
type membership struct {
	ranks   map[int]int // of this host's members, by local rank
	leader  bool        // one of them is rank 0
	lacks   int         // how many more workers make a replica group
	locals  [][]int     // the local ranks of each node's members
	pending bool        // it is the last one; that of this round is not known yet

	losses []*failure.ProcessFailure // of a pending one: why it changes
	paid   bool                      // a restart has been counted for them
}

// has reports whether a node may have members.
func (m *membership) has(node int) bool {
	return m == nil || node < 0 || node >= len(m.locals) || len(m.locals[node]) > 0
}

// watchLive waits for a reason for the next change, and sends it.
func (a *Agent) watchLive(ctx context.Context, at *attempt, change int) error {
	w, f := a.live, at.formed.Load()
	var failed *live.Said
	joins, wanted := false, ""
	if f.leader {
		a.whenSet(ctx, at, liveJoinKey, func() { joins = true })
	}
	counted, ready := 0, 0
	for {
		enough := false
		err := w.await(ctx, func() bool {
			failed, enough, ready = w.host.FailedMember(change), joins, w.host.Joining()
			if f.leader {
				wanted = at.wanted
			}
			return failed != nil || joins || ready > counted || wanted != ""
		})
		if err == nil && failed == nil && !enough && wanted == "" {
			enough, err = a.enough(ctx, at, f, ready, ready-counted)
			counted = ready
		}
		switch {
		case err != nil:
			return err
		case failed != nil:
			// Its reason may be on its way; then life ends, or the training has.
			if sleep.For(ctx, a.cfg.PeerTimeout) != nil {
				return context.Cause(ctx)
			}
			line, _, _ := strings.Cut(failed.Error, "\n")
			return a.changeAgain(ctx, at, "a collective failed on "+a.cfg.Host+": "+text.Line(line, maxText))
		case wanted != "" || enough && f.leader:
			return a.planChange(ctx, at, change, cmp.Or(wanted, "workers join"))
		case enough:
			if err := at.round.Store.Set(ctx, liveJoinKey, []byte(a.cfg.Host)); err != nil {
				return storeError(err)
			}
		}
	}
}

// enough reports whether the workers that are ready make a replica group: all of this host, of which some
// are not counted yet.
func (a *Agent) enough(ctx context.Context, at *attempt, f *membership, ready, more int) (bool, error) {
	if f.lacks <= 1 || at.alone() {
		return ready >= f.lacks, nil
	}
	n, err := at.round.Store.Add(ctx, liveReadyKey, int64(more))
	return n >= int64(f.lacks), storeError(err)
}

// changeAgain asks for another round at once, unless too many in a row did not help.
func (a *Agent) changeAgain(ctx context.Context, at *attempt, cause string) error {
	n := a.fruitless.Load() + 1
	switch {
	case at.formed.Load() == nil:
		return fmt.Errorf("the workers of this host have not become a group: %s", cause)
	case n > live.MostFruitless:
		return fmt.Errorf("%d changes in a row have not helped: %s", n, cause)
	}
	at.send(news{ev: decide.EvLiveChange, record: &record{At: -1, Cause: cause, Fruitless: int(n)}})
	<-ctx.Done()
	return context.Cause(ctx)
}

// rank is that of a worker of this host.
func (at *attempt) rank(localRank int) int {
	if f := cmp.Or(at.formed.Load(), at.broken.Load()); f != nil {
		if rank, ok := f.ranks[localRank]; ok {
			return rank
		}
	}
	return at.ranks.Base + localRank
}

// localRank is that of the worker with a rank.
func (at *attempt) localRank(rank int) int {
	if f := at.formed.Load(); f != nil {
		for i, r := range f.ranks {
			if r == rank {
				return i
			}
		}
	}
	return rank - at.ranks.Base
}

// liveState is the part of an attempt that live changes need.
type liveState struct {
	formed      atomic.Pointer[membership] // nil before the workers are a group that can change
	broken      atomic.Pointer[membership] // the last one, if there can be no other after losses
	wanted      string                     // why others want a change; the lock of liveWorkers guards it
	mu          sync.Mutex                 // guards excluded
	excluded    map[int]process.Exit       // workers without which the others continue, by local rank
	lostWorkers map[int]process.Exit       // those that have failed in this attempt, by local rank
	losses      []*failure.ProcessFailure  // why these have, and what others said of theirs
	kept        atomic.Bool                // the workers continue after this attempt
	released    chan struct{}              // closed when they are kept
}

// paid is how many restarts have been counted for a failure before it: a worker was lost, and then
// the others could not go on.
func (at *attempt) paid() int {
	if b := at.broken.Load(); b != nil && b.paid {
		return 1
	}
	return 0
}

// exclude has a worker's end be no failure.
func (at *attempt) exclude(x process.Exit) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if _, known := at.excluded[x.LocalRank]; !known {
		at.excluded[x.LocalRank] = x
	}
}

// withoutExcluded leaves out of a result the workers without which the others have continued.
func (at *attempt) withoutExcluded(res *process.Result) *process.Result {
	at.mu.Lock()
	defer at.mu.Unlock()
	if len(at.excluded) == 0 {
		return res
	}
	r := *res
	r.Exits, r.Failures = maps.Clone(res.Exits), maps.Clone(res.Failures)
	for i := range at.excluded {
		delete(r.Exits, i)
		delete(r.Failures, i)
	}
	return &r
}
