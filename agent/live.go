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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
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
//     meets the other agents in a new round, as for a restart (goOn). The workers come to rest.
//  2. In the round each agent says which workers it has at livePartPrefix and its group rank.
//     The agent with group rank 0 makes the list of all (planLive), at livePlanKey.
//  3. Each agent hands it to its workers, which then reconfigure their process group (form).
//  4. Workers that start come in by another round once they are ready: who wants one sets
//     liveJoinKey, and the agent that has rank 0 asks for it, with the step at which all
//     come to rest. It does so once the workers of all agents are together, as they say
//     at liveTogetherPrefix; those that still reconfigure could only come to rest at once.
//  5. Workers that have no place in the membership, since their replica group is not whole,
//     are at rest until it is.
//
// The training ends when a worker says so, which it does when all have completed the last step.
// Then liveOverKey is set: nobody joins any more, and workers that are starting are stopped.
//
// Whatever does not work out ends the workers of the agent that finds it, which is a failure as
// any other: the group restarts.

const (
	livePartPrefix = "muster/live/"
	liveFormPrefix = "muster/live/form/"
	livePlanKey    = "muster/live/plan"
	liveJoinKey    = "muster/live/join"
	liveReadyKey   = "muster/live/ready" // how many workers are ready to join
	liveOverKey    = "muster/live/over"
	liveUrgeKey    = "muster/live/urge" // a host, for which the others are to come to rest at once

	liveTogetherPrefix = "muster/live/together/"
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

// lively reports whether the workers of this host can go on as others are lost or come.
func (a *Agent) lively(at *attempt) bool {
	return a.live != nil && at.phase == running && at.formed.Load() != nil && len(a.live.left()) > 0
}

// aside handles news that concern a live group and do not end the attempt.
func (a *Agent) aside(at *attempt, n *news) bool {
	if a.live != nil && (at.phase == running || at.phase == finished) && a.live.isOver() && a.afterEnd(at, n) {
		return true
	}
	switch {
	case a.live == nil || at.phase != running || at.formed.Load() == nil:
	case n.ev == evFailing && n.waited == 0 && a.policy != nil &&
		a.cfg.Policy.Unsettled(a.failureOf(at, a.explainExit(at, n.exit, nil, nil))):
		a.announceLater(at, *n)
		return true
	case a.live.isOver():
		return false
	case n.ev == evLiveChange:
		return !a.lively(at) // their end is news, too
	case n.ev == evNodesWaiting && n.change.Kind == rendezvous.NodesWaiting:
		const cause = "a host joins"
		if at.formed.Load().pending { // which hosts do not ask for that have members already
			n.ev, n.record = evLiveChange, &record{Cause: cause, At: -1}
			return false
		}
		a.live.mu.Lock()
		at.wanted = cause // the agent with rank 0 asks for a round
		a.live.tell()
		a.live.mu.Unlock()
		return true
	case n.ev == evFailing && !a.live.isMember(n.exit.LocalRank) && a.restartsLeft() > 0:
		f := a.explainExit(at, n.exit, nil, nil)
		if a.startAll(at, []*failure.ProcessFailure{f}) {
			return false
		}
		a.carriedOut(atOnce(at.verdict))
		at.verdict = nil
		a.restarts++
		a.log.Warn("live: a worker failed before it joined the group; starting another", "cause", f.Error())
		return a.replace(at, n.exit.LocalRank)
	}
	return false
}

// afterEnd handles news once the training has ended: no host is needed any more, nor a worker that
// has not taken part, and nothing begins again.
func (a *Agent) afterEnd(at *attempt, n *news) bool {
	switch {
	case n.ev == evFailing && at.phase == running && !a.live.isMember(n.exit.LocalRank):
		a.live.ended(n.exit.LocalRank)
		at.pardon(n.exit)
		return true
	case n.ev == evLiveChange, n.ev == evNodesWaiting && n.change.Kind == rendezvous.NodesWaiting:
		return true
	case n.ev == evNodeGone && n.change.Rank >= 0:
		at.wg.Go(func() {
			if err := excuse(at.life, at.round.Store, n.change.Rank, at.round.WorldSize); err != nil && at.life.Err() == nil {
				a.log.Debug("exit barrier: cannot count a node that is gone", "error", err)
			}
		})
	case n.ev == evNodeGone, n.ev == evEvicted, n.ev == evDisconnected:
		if at.phase == finished {
			n.ev, n.err = evBarrierBroken, errors.New(n.why())
			return false
		}
	default:
		return false
	}
	a.log.Info("a host is lost after the training has ended; going on", a.changeAttrs(at, n.change)...)
	if at.phase == running && (n.ev != evNodeGone || at.formed.Load().has(n.change.Rank)) {
		// ranks may wait for that host's
		a.comeToRest(&liveMessage{Type: "change", Urgent: true, Reason: n.why()})
	}
	return true
}

// goOn keeps the workers over the end of an attempt, if they can go on without what n says is
// lost, or with what it says is new. It returns false if they cannot, and another node's record
// as news if that decides.
func (a *Agent) goOn(ctx context.Context, at *attempt, n *news, act action) (goes bool, other *news) {
	if a.live == nil || at.phase != running {
		return false, nil
	}
	last, over := at.formed.Load(), a.live.isOver()
	formed := last != nil
	var losses []*failure.ProcessFailure
	paid, counted := false, a.restarts
	if formed {
		losses, paid = slices.Clone(last.losses), last.paid
	}
	at.mu.Lock()
	lost := maps.Clone(at.forgiven)
	at.mu.Unlock()
	drain := func() { // those that have failed as well
		for {
			select {
			case x := <-at.group.Failed():
				lost[x.LocalRank] = x
				losses = append(losses, a.explainExit(at, x, nil, nil))
				a.live.ended(x.LocalRank)
			default:
				return
			}
		}
	}
	closeGroup := func() {
		at.wg.Go(func() { at.group.Close(syscall.SIGTERM, a.cfg.ShutdownTimeout) })
	}
	m := &liveMessage{Type: "change", Urgent: true}
	switch {
	case n.ev == evFailing || n.ev == evFailed || n.ev == evLostPeers:
		failures, left := at.failures, 0 // of a group that has ended
		if n.ev == evFailing {
			lost[n.exit.LocalRank] = n.exit
			a.live.ended(n.exit.LocalRank)
			failures = []*failure.ProcessFailure{a.explainExit(at, n.exit, nil, nil)}
		}
		losses = append(losses, failures...)
		if n.ev == evFailing {
			drain()
			left = len(a.live.left())
		}
		if !formed || over || left == 0 && (at.alone() || a.restartsLeft() <= 0) || a.startAll(at, failures) {
			if n.ev == evFailing {
				closeGroup()
			}
			return false, nil
		}
		n.record = a.newRecord(at, failures, nil, false)
		n.record.Live, n.record.At = true, -1
		if a.restartsLeft() <= 0 {
			n.record.Restarts = a.restarts // nobody is replaced
		}
		if other := a.put(ctx, at, n.record); other != nil && other.ev != evPeerLive {
			return false, other
		}
		m.Reason = n.record.who()
	case n.ev == evPeerLive || formed && n.ev == evPeerRestarts && n.record.leaves():
		if n.ev == evPeerRestarts {
			n.record.At = -1
		}
		m.Reason, m.Urgent, m.At = n.record.who(), n.record.At < 0, max(n.record.At, 0)
		if theirs, err := failure.Decode(n.record.Failures, at.round.ClockOffset); err == nil {
			losses = append(losses, theirs...)
		}
		a.restarts = max(a.restarts, n.record.Restarts)
		a.carriedOutElsewhere(at, atOnce(n.record.Decision))
	case n.ev == evLiveChange:
		rec := n.record
		rec.Node, rec.Host, rec.Rank, rec.Restarts, rec.Live = at.round.Rank, a.cfg.Host, -1, a.restarts, true
		if other := a.put(ctx, at, rec); other != nil && other.ev != evPeerLive {
			return false, other
		}
		m.Reason, m.Urgent, m.At = rec.Cause, rec.At < 0, max(rec.At, 0)
	case formed && act == actRejoin && (n.ev == evNodeGone || n.ev == evEvicted || n.ev == evNodesWaiting):
		if m.Reason = n.why(); n.change.Node != "" {
			m.Reason = "host lost: " + n.change.Node
		}
	case !formed && n.ev == evNodesWaiting:
		// So that those hear of it that have a group already.
		other = a.put(ctx, at,
			&record{Node: at.round.Rank, Host: a.cfg.Host, Rank: -1, Restarts: a.restarts, Live: true, At: -1, Cause: n.why()})
		if other != nil && other.ev == evPeerLive {
			other = nil
		}
		return false, other
	default:
		return false, nil
	}
	drain()
	if n.ev == evFailing && at.alone() && len(a.live.left()) == 0 {
		n.record = nil
		closeGroup()
		return false, nil
	}
	if formed {
		paid = paid || n.record != nil && n.record.Rank >= 0 && n.record.Restarts > counted
		a.carried = &membership{ranks: last.ranks, pending: true, losses: losses, paid: paid}
	}
	if !formed || len(a.live.left()) == 0 && !over || n.ev == evFailed || n.ev == evLostPeers {
		a.comeBack(ctx, at, n)
		return true, nil
	}
	if n.ev != evPeerLive && n.ev != evPeerRestarts {
		a.carriedOut(atOnce(at.verdict))
	}
	a.log.Warn("live: the workers pause", "run_id", a.cfg.Rendezvous.RunID(), "round", at.round.Round,
		"cause", m.Reason, "workers_here", len(a.live.members()))
	a.emit(at, Resting{m.Reason})
	switch {
	case n.record != nil && n.record.Futile > 0:
		a.futile.Store(max(a.futile.Load(), int32(min(n.record.Futile, live.MostFutile+1))))
	case n.ev != evLiveChange || n.record.At >= 0:
		a.futile.Store(0)
	}
	a.comeToRest(m)
	a.kept = &kept{team: at.team, lost: lost, restarts: a.restarts}
	at.keptOn.Store(true)
	close(at.released)
	return true, nil
}

// comeBack ends the attempt of a host that has no workers left, or none that can go on. Others
// start in the next round.
func (a *Agent) comeBack(ctx context.Context, at *attempt, n *news) {
	failed := n.ev == evFailing || n.ev == evFailed || n.ev == evLostPeers
	a.stopWorkers(ctx, at, syscall.SIGTERM)
	if failed {
		a.explain(at, nil)
		a.restart(at, n.record, true)
	}
}

// who is the record's cause with the worker that it is about.
func (r *record) who() string {
	if r.Rank < 0 {
		return r.Cause
	}
	return fmt.Sprintf("rank %d on %s: %s", r.Rank, r.Host, r.Cause)
}

// comeToRest begins a change of this host's members.
func (a *Agent) comeToRest(m *liveMessage) {
	w := a.live
	w.mu.Lock()
	w.change++
	m.Change = w.change
	w.mu.Unlock()
	w.send(w.members(), func(int) *liveMessage { return m })
}

// plan asks for a change that nobody needs at once. It begins at a step, unless the workers of
// some host are not together when they have to be.
func (a *Agent) plan(ctx context.Context, at *attempt, change int, cause string) error {
	rec := &record{Cause: cause, At: -1}
	if a.together(ctx, at) {
		for {
			step, err := a.meetingStep(ctx, change)
			if rec.At = step; err == nil || ctx.Err() != nil {
				break
			}
		}
	}
	if ctx.Err() == nil {
		at.send(news{ev: evLiveChange, record: rec})
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// together waits until the workers of all agents are members, and says whether they are.
func (a *Agent) together(ctx context.Context, at *attempt) bool {
	if at.alone() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, a.liveTimeout())
	defer cancel()
	for i := range at.round.WorldSize {
		if _, err := patientGet(ctx, at.round.Store, liveTogetherPrefix+strconv.Itoa(i)); err != nil {
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
	at.team, at.forgiven = k.team, k.lost
	at.ranks = ranks
	for _, i := range slices.Sorted(maps.Keys(at.forgiven)) {
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

// replace starts a worker in place of one that has failed, and says whether it could.
func (a *Agent) replace(at *attempt, localRank int) bool {
	err := error(process.ErrNoReplacement)
	if group, ok := at.group.(interface {
		Replace(localRank int, args []string, env map[string]string) error
	}); ok {
		env := a.workerEnv(at, a.restarts, localRank)
		maps.Copy(env, a.live.env(localRank))
		err = group.Replace(localRank, a.cfg.Spec.Args(localRank, at.ranks.Base+localRank), env)
	}
	if err != nil {
		a.live.forget(localRank)
		a.log.Warn("live: cannot start a worker in place of one that failed", "local_rank", localRank, "error", err)
		return false
	}
	at.mu.Lock()
	delete(at.forgiven, localRank)
	at.mu.Unlock()
	if a.live.isOver() { // awaitEnd may not have seen this worker
		at.pardon(process.Exit{LocalRank: localRank, StoppedBy: syscall.SIGKILL})
		at.kill(localRank)
	}
	return true
}

// kill kills one worker.
func (at *attempt) kill(localRank int) {
	if group, ok := at.group.(interface {
		Signal(localRank int, sig syscall.Signal) bool
	}); ok {
		group.Signal(localRank, syscall.SIGKILL)
	}
}

// spare ends the workers of a host for which the round has no place, once they are at rest: those
// of the others finish their step with them. Later it begins anew.
func (a *Agent) spare(ctx context.Context) {
	if k := a.kept; k != nil {
		a.log.Warn("live: this host waits as a spare; its workers are stopped", "run_id", a.cfg.Rendezvous.RunID())
		at := newAttempt(ctx)
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
	errStore = errors.New("the agents cannot meet in the store of the round")
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
		at.accuse(i, failure.LivePrefix+text.Line(err.Error(), maxText))
	}
	at.group.Kill()
}

// awaitEnd waits until the training has ended on some host, and tells the others and this host's
// workers, as long as the round lives.
func (a *Agent) awaitEnd(at *attempt, end context.CancelCauseFunc) {
	w := a.live
	if !at.alone() {
		at.wg.Go(func() {
			if _, err := patientGet(at.life, at.round.Store, liveOverKey); err == nil {
				w.end()
			}
		})
	}
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
		at.pardon(process.Exit{LocalRank: i, StoppedBy: syscall.SIGKILL})
		at.kill(i)
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
			if sleep.For(waiting, live.Straggle) == nil {
				a.urgeOthers(waiting, at)
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
	w, rest := a.live, live.Rest{Change: change, Until: time.Now().Add(a.liveTimeout())}
	waiting, rested := context.WithCancel(ctx)
	defer rested()
	if at.round != nil && !at.alone() { // a spare is in no round
		at.wg.Go(func() {
			if _, err := patientGet(waiting, at.round.Store, liveUrgeKey); err == nil {
				w.mu.Lock()
				rest.Others = true
				w.tell()
				w.mu.Unlock()
			}
		})
	}
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
		case live.Urge:
			w.send(w.each(func(x *liveWorker) bool { return x.Member && !x.Gone && !resting(x) }), func(int) *liveMessage {
				return &liveMessage{Type: "change", Said: live.Said{Change: change}, Urgent: true,
					Reason: "others are at rest already"}
			})
			if !others {
				at.wg.Go(func() { a.urgeOthers(waiting, at) })
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

// urgeOthers has the workers of the other hosts come to rest at once: they may be in a collective
// with those of this host, which are not.
func (a *Agent) urgeOthers(ctx context.Context, at *attempt) {
	if at.round == nil || at.alone() {
		return
	}
	if err := at.round.Store.Set(ctx, liveUrgeKey, []byte(a.cfg.Host)); err != nil && ctx.Err() == nil {
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
	why := fmt.Sprintf("%s within %v", what, a.liveTimeout())
	if a.cfg.AutopsyTimeout > 0 {
		all, pids := at.group.PIDs(), map[int]int{}
		w.mu.Lock()
		for i := range late {
			pids[i] = all[i]
		}
		w.mu.Unlock()
		if len(pids) > 0 {
			at.autopsies.Lock()
			r := a.lookAt(ctx, at, "live change: a worker "+why, pids)
			at.autopsies.Unlock()
			a.write(at, r)
			why += ": " + r.Summary()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range late {
		a.log.Warn("live: killing a worker, because the others wait for it", "local_rank", i, "it", what,
			"timeout", a.liveTimeout())
		at.accuse(i, "live change: it "+why)
		x.Gone = true
		at.wg.Go(func() { at.kill(i) })
	}
}

func (a *Agent) liveTimeout() time.Duration {
	if a.cfg.LiveTimeout > 0 {
		return a.cfg.LiveTimeout
	}
	return DefaultLiveTimeout
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
	if w.change != change || w.over { // whoever is not a member yet would not hear of it
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
			Timeout: a.liveTimeout().Seconds(),
		}}
	})
	var failed *live.Said
	taken := func(limit time.Duration) error {
		soon, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return w.await(soon, func() (all bool) {
			all, failed = w.host.Taken(change, ranks)
			return all
		})
	}
	late := func(to map[int]*liveWorker) {
		a.killLate(ctx, at, to, "does not take part", func(x *liveWorker) bool { return x.TookPart(change) })
	}
	err := taken(a.liveTimeout())
	if n := len(plan.Joined); err != nil && ctx.Err() == nil && n > 0 && n < len(plan.Handles) {
		// They may wait for one that joins, on whatever host, which is no reason to lose the state.
		joins := maps.Clone(to)
		maps.DeleteFunc(joins, func(local int, _ *liveWorker) bool { return !slices.Contains(plan.Joined, ranks[local]) })
		late(joins)
		err = taken(a.cfg.PeerTimeout)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		late(to)
		return nil // their end is news
	case failed != nil:
		return nil // watchLive finds it
	}
	if !at.alone() {
		if err := at.round.Store.Set(ctx, liveTogetherPrefix+strconv.Itoa(at.round.Rank), []byte(a.cfg.Host)); err != nil {
			return storeError(err)
		}
	}
	a.log.Warn("live: the workers resume", "round", at.round.Round, "world_size", len(plan.Handles),
		"joined", len(plan.Joined), "here", len(to), "took", time.Since(began).Round(time.Millisecond))
	a.emitElsewhere(Reconfigured{len(plan.Handles), len(plan.Handles) - len(plan.Joined)})
	return nil
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
	if f.leader && !at.alone() {
		at.wg.Go(func() {
			if _, err := patientGet(ctx, at.round.Store, liveJoinKey); err == nil {
				w.mu.Lock()
				joins = true
				w.tell()
				w.mu.Unlock()
			}
		})
	}
	counted, ready := 0, 0
	for {
		enough := false
		err := w.await(ctx, func() bool {
			failed, enough, ready = w.host.Unrest(change), joins, w.host.Joining()
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
			return a.changeAgain(ctx, at, "a collective failed on "+a.cfg.Host+": "+text.Line(firstLine(failed.Error), maxText))
		case wanted != "" || enough && f.leader:
			return a.plan(ctx, at, change, cmp.Or(wanted, "workers join"))
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
	n := a.futile.Load() + 1
	if at.formed.Load() == nil || n > live.MostFutile {
		return fmt.Errorf("another change would not help: %s", cause)
	}
	at.send(news{ev: evLiveChange, record: &record{At: -1, Cause: cause, Futile: int(n)}})
	<-ctx.Done()
	return context.Cause(ctx)
}

func firstLine(s string) string {
	for i, r := range s {
		if r == '\n' {
			return s[:i]
		}
	}
	return s
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
	formed   atomic.Pointer[membership] // nil before the workers are a group that can change
	broken   atomic.Pointer[membership] // the last one, if there can be no other after losses
	wanted   string                     // why others want a change; the lock of liveWorkers guards it
	forgiven map[int]process.Exit       // workers without which the others went on, by local rank; mu guards it
	keptOn   atomic.Bool                // the workers go on after this attempt
	released chan struct{}              // closed when they are kept
}

// paid is how many restarts have been counted for a failure before it: a worker was lost, and then
// the others could not go on.
func (at *attempt) paid() int {
	if b := at.broken.Load(); b != nil && b.paid {
		return 1
	}
	return 0
}

// pardon has a worker's end be no failure.
func (at *attempt) pardon(x process.Exit) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if _, known := at.forgiven[x.LocalRank]; !known {
		at.forgiven[x.LocalRank] = x
	}
}

// forgive leaves out of a result the workers without which the others have gone on.
func (at *attempt) forgive(res *process.Result) *process.Result {
	at.mu.Lock()
	defer at.mu.Unlock()
	if len(at.forgiven) == 0 {
		return res
	}
	r := *res
	r.Exits, r.Failures = maps.Clone(res.Exits), maps.Clone(res.Failures)
	for i := range at.forgiven {
		delete(r.Exits, i)
		delete(r.Failures, i)
	}
	return &r
}
