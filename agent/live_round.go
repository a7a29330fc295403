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
	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// A liveRound brings the workers of all hosts together in a round (form), and finds out when that has to happen again.
// Its goroutines are the attempt's. form and what it calls run beside the goroutine of Run, which owns lostWorkers and
// losses: form tells it by news that the members are to change, and by formed and broken what they are.
type liveRound struct {
	a    *Agent
	at   *attempt
	link *link.Link // nil without Config.Live; then nothing else here is used

	formed      atomic.Pointer[membership] // nil before the workers are a group that can change
	broken      atomic.Pointer[membership] // the last one, if there can be no other after losses
	wanted      string                     // why others want a change; the lock of link guards it
	mu          sync.Mutex                 // guards excluded
	excluded    map[int]process.Exit       // workers without which the others continue, by local rank
	lostWorkers map[int]process.Exit       // those that have failed in this attempt, by local rank
	losses      []*failure.ProcessFailure  // why these have, and what others said of theirs
	kept        atomic.Bool                // the workers continue after this attempt
	released    chan struct{}              // closed when they are kept
}

// planChange asks for a change that nobody needs at once. It begins at a step, unless the workers of some host are not
// members in time, or one here does not say in time where it is: it may be stopped.
func (r *liveRound) planChange(ctx context.Context, change int, cause string) error {
	rec := &peers.Record{Cause: cause, At: -1}
	if r.awaitMembers(ctx) {
		step, err := r.meetingStep(ctx, change)
		for late := time.Now().Add(r.a.cfg.LiveTimeout); err != nil && ctx.Err() == nil && time.Now().Before(late); {
			step, err = r.meetingStep(ctx, change)
		}
		if rec.At = step; err != nil {
			silent := r.link.Each(func(x *link.Worker) bool { return x.Member && !x.Gone && x.At == nil })
			rec.At = -1
			rec.Cause += fmt.Sprintf("; no word from local ranks %v on %s", slices.Sorted(maps.Keys(silent)), r.a.cfg.Host)
		}
	}
	if ctx.Err() == nil {
		r.at.send(news{ev: decide.EvLiveChange, record: rec})
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// awaitMembers waits until the workers of all agents are members, and reports whether they are.
func (r *liveRound) awaitMembers(ctx context.Context) bool {
	if r.at.alone() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.a.cfg.LiveTimeout)
	defer cancel()
	for i := range r.at.round.WorldSize {
		if _, err := peers.Await(ctx, r.at.round.Store, liveMembersPrefix+strconv.Itoa(i)); err != nil {
			return false
		}
	}
	return true
}

// meetingStep is the step at which workers can pause all together; -1 if they cannot.
func (r *liveRound) meetingStep(ctx context.Context, change int) (step int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	w, members := r.link, r.link.Members()
	w.Look(func(*link.State) {
		for _, x := range members {
			x.At = nil
		}
	})
	w.Send(members, func(int) *link.Message { return &link.Message{Type: "where", Said: live.Said{Change: change}} })
	err = w.Await(ctx, func(s *link.State) (all bool) {
		step, all = s.Host.Meeting(change)
		return all
	})
	return step, err
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
func (r *liveRound) form(change int, had bool) {
	forming, end := context.WithCancelCause(r.at.run.life)
	defer end(nil)
	r.at.run.wg.Go(func() { r.awaitEnd(end) })
	err := r.formOnce(forming, change, had)
	for err == nil {
		err = r.watchLive(forming, change)
	}
	switch {
	case errors.Is(err, errNewer):
		<-forming.Done()
	case errors.Is(err, errStore): // the loss of a host is news of its own
		_ = sleep.For(forming, r.a.cfg.PeerTimeout)
	}
	if forming.Err() != nil {
		return
	}
	r.a.log.Warn("live: the workers cannot resume; they are stopped", "error", err)
	if f := r.formed.Swap(nil); f != nil && len(f.losses) > 0 {
		r.broken.Store(f)
	}
	for i := range r.link.Left() {
		r.at.evidence.NoteDeadline(i, failure.LivePrefix+text.Line(err.Error(), peers.MaxText))
	}
	r.at.team.group.Kill()
}

// whenSet calls do, with the lock of the link held, when another agent has set a key of the round.
func (r *liveRound) whenSet(ctx context.Context, key string, do func(*link.State)) {
	if r.at.round == nil || r.at.alone() { // a spare is in no round
		return
	}
	r.at.run.wg.Go(func() {
		if _, err := peers.Await(ctx, r.at.round.Store, key); err == nil {
			r.link.Update(do)
		}
	})
}

// awaitEnd waits until the training has ended on some host, and tells the others and this host's
// workers, as long as the round lives.
func (r *liveRound) awaitEnd(end context.CancelCauseFunc) {
	w := r.link
	r.whenSet(r.at.run.life, liveOverKey, func(s *link.State) { s.Over = true })
	if w.Await(r.at.run.life, func(s *link.State) bool { return s.Over }) != nil {
		return
	}
	end(errOver)
	if !r.at.alone() {
		if err := r.at.round.Store.Set(r.at.run.life, liveOverKey, []byte(r.a.cfg.Host)); err != nil {
			r.a.log.Warn("live: cannot tell the other hosts that the training has ended", "error", err)
		}
	}
	w.Send(w.Members(), func(int) *link.Message { return &link.Message{Type: "over"} })
	starting := w.Each(func(x *link.Worker) bool { return !x.Gone && x.Ready == nil })
	for i := range w.Each(func(x *link.Worker) bool { return !x.Member && !x.Gone }) {
		it := "waits for others"
		if starting[i] != nil {
			it = "is starting"
		}
		r.a.log.Warn("live: the training has ended without one worker; stopping it", "local_rank", i, "it", it)
		r.at.exclude(process.Exit{LocalRank: i, StoppedBy: syscall.SIGKILL})
		r.at.team.group.Signal(i, syscall.SIGKILL)
	}
}

// patience is how long the agent waits in silence for workers to come to their first membership.
const patience = 30 * time.Second

// formOnce makes the membership of the round, and hands it to this host's workers. Agents agree twice where nobody
// has the state of the training yet: the first plan only says so, and all workers that start are waited for. What an
// agent has said under a key stays, so the second time has keys of its own.
func (r *liveRound) formOnce(ctx context.Context, change int, had bool) error {
	began := time.Now()
	if had {
		if err := r.awaitRest(ctx, change); err != nil {
			return err
		}
		waiting, told := context.WithCancel(ctx)
		defer told()
		r.at.run.wg.Go(func() {
			if sleep.For(waiting, live.InterruptAfter) == nil {
				r.interruptOthers(waiting)
			}
		})
	}
	part, err := r.livePart(change)
	var plan *live.Plan
	if err == nil {
		plan, err = r.agree(ctx, livePartPrefix, part)
	}
	if err == nil && plan.Form {
		if err := r.awaitStart(ctx, part.Starting); err != nil {
			return err
		}
		if part, err = r.livePart(change); err == nil {
			plan, err = r.agree(ctx, liveFormPrefix, part)
		}
	}
	if err != nil {
		return err
	}
	if err := plan.Check(r.at.round.WorldSize); err != nil {
		return err
	}
	return r.reconfigure(ctx, plan, change, began)
}

// awaitStart waits until no worker has still to start.
func (r *liveRound) awaitStart(ctx context.Context, starting int) error {
	var said []int
	for starting > 0 {
		soon, cancel := context.WithTimeout(ctx, patience)
		err := r.link.Await(soon, func(s *link.State) bool { return s.Host.Settled() })
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var missing []int
		for i := range r.link.Each(func(x *link.Worker) bool { return !x.Gone && x.Ready == nil }) {
			missing = append(missing, i)
		}
		if slices.Sort(missing); !slices.Equal(missing, said) {
			r.a.log.Warn("live: the job waits for workers to call muster.live.join", "local_ranks", missing)
			said = missing
		}
	}
	return nil
}

// awaitRest waits until the members of this host are at rest, and kills those that are not in
// time.
func (r *liveRound) awaitRest(ctx context.Context, change int) error {
	w, rest := r.link, live.Rest{Change: change, Until: time.Now().Add(r.a.cfg.LiveTimeout)}
	waiting, rested := context.WithCancel(ctx)
	defer rested()
	r.whenSet(waiting, liveUrgentKey, func(*link.State) { rest.Others = true })
	for {
		step, until, others := live.Rested, time.Time{}, false
		news := w.Look(func(s *link.State) {
			step, until = rest.Next(s.Host, time.Now())
			others = rest.Others
		})
		switch step {
		case live.Rested:
			return context.Cause(ctx)
		case live.Kill:
			now := time.Now()
			r.killLate(ctx, w.Members(), "does not pause", func(x *link.Worker) bool { return !x.Late(change, now) })
			continue
		case live.Interrupt:
			w.Send(w.Each(func(x *link.Worker) bool { return x.Member && !x.Gone && !x.Resting(change) }), func(int) *link.Message {
				return &link.Message{Type: "change", Said: live.Said{Change: change}, Urgent: true,
					Reason: "others are at rest already"}
			})
			if !others {
				r.at.run.wg.Go(func() { r.interruptOthers(waiting) })
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
func (r *liveRound) interruptOthers(ctx context.Context) {
	if r.at.round == nil || r.at.alone() {
		return
	}
	if err := r.at.round.Store.Set(ctx, liveUrgentKey, []byte(r.a.cfg.Host)); err != nil && ctx.Err() == nil {
		r.a.log.Debug("live: cannot tell the other hosts that the workers here wait", "error", err)
	}
}

// killLate kills the workers that have not done in time what they had to, with evidence of what they
// did instead. They count as lost.
func (r *liveRound) killLate(ctx context.Context, of map[int]*link.Worker, what string,
	done func(*link.Worker) bool) {
	w := r.link
	late := func(yield func(int, *link.Worker) bool) {
		for i, x := range of {
			if !x.Gone && !done(x) && !yield(i, x) {
				return
			}
		}
	}
	why := fmt.Sprintf("%s within %v", what, r.a.cfg.LiveTimeout)
	all, pids := r.at.team.group.PIDs(), map[int]int{}
	w.Look(func(*link.State) {
		for i := range late {
			pids[i] = all[i]
		}
	})
	if r := r.at.evidence.Examine(ctx, "live change: a worker "+why, pids); r != nil {
		why += ": " + r.Summary()
	}
	w.Look(func(*link.State) {
		for i, x := range late {
			r.a.log.Warn("live: killing a worker, because the others wait for it", "local_rank", i, "it", what,
				"timeout", r.a.cfg.LiveTimeout)
			r.at.evidence.NoteDeadline(i, "live change: it "+why)
			x.Gone = true
			r.at.run.wg.Go(func() { r.at.team.group.Signal(i, syscall.SIGKILL) })
		}
	})
}

// livePart is what this agent says of its workers, all of which rest for the change.
func (r *liveRound) livePart(change int) (part live.Part, err error) {
	r.link.Look(func(s *link.State) {
		if part = s.Host.Part(change); s.Change != change {
			err = errNewer
		}
	})
	return part, err
}

// agree tells the others what this agent has, and returns the plan of all. One agent makes it: if each made it of
// all parts, a large job would read the store as often as it has pairs of hosts.
func (r *liveRound) agree(ctx context.Context, prefix string, part live.Part) (*live.Plan, error) {
	if r.at.alone() {
		plan := live.Agree([]live.Part{part})
		plan.UUID = live.UUID(r.at.round.Round, rand.Uint32())
		return plan, context.Cause(ctx)
	}
	s, n := r.at.round.Store, r.at.round.WorldSize
	said, err := json.Marshal(part)
	if err == nil {
		err = s.Set(ctx, prefix+strconv.Itoa(r.at.round.Rank), said)
	}
	planKey := livePlanKey + prefix[len(livePartPrefix):]
	if err == nil && r.at.round.Rank == 0 {
		err = r.lead(ctx, prefix, planKey, n)
	}
	var found []byte
	if err == nil {
		found, err = peers.Await(ctx, s, planKey)
	}
	plan := &live.Plan{}
	if err == nil {
		err = peers.Decode(planKey, found, maxPlan, maxListed, plan)
	}
	return plan, storeError(err)
}

func storeError(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %w", errStore, err)
	}
	return err
}

// lead makes the plan of all agents.
func (r *liveRound) lead(ctx context.Context, prefix, planKey string, n int) error {
	parts := make([]live.Part, n)
	for i := range parts {
		key := prefix + strconv.Itoa(i)
		text, err := peers.Await(ctx, r.at.round.Store, key)
		if err == nil {
			err = peers.Decode(key, text, maxPart, maxMembers, &parts[i])
		}
		if err != nil {
			return err
		}
	}
	plan := live.Agree(parts)
	plan.UUID = live.UUID(r.at.round.Round, rand.Uint32())
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	return r.at.round.Store.Set(ctx, planKey, text)
}

// reconfigure tells this host's members of their ranks.
func (r *liveRound) reconfigure(ctx context.Context, plan *live.Plan, change int, began time.Time) error {
	newer, lost := false, -1
	var ranks map[int]int
	to := map[int]*link.Worker{}
	r.link.Look(func(s *link.State) {
		if newer = s.Change != change || s.Over; newer { // a worker that is not a member yet would not hear of it
			return
		}
		ranks, lost = s.Host.Place(plan, r.at.round.Rank)
		for local := range ranks {
			to[local] = s.Workers[local]
		}
	})
	if newer {
		return errNewer
	} else if lost >= 0 {
		return r.changeAgain(ctx,
			fmt.Sprintf("the worker with local rank %d on %s ended as it was to join", lost, r.a.cfg.Host))
	}
	r.formed.Store(&membership{ranks: ranks, leader: plan.Leader() == r.at.round.Rank,
		lacks: plan.Lacks, locals: plan.Locals})
	r.a.published.part(r.at, ranks)
	r.warnOfLoss(plan)
	said := live.Said{Change: change, Lineage: cmp.Or(plan.Lineage, plan.UUID)} // a state that nobody had begins here
	r.link.Send(to, func(local int) *link.Message {
		return &link.Message{Type: "members", Said: said, Members: &link.Members{
			UUID: plan.UUID, Rank: ranks[local], World: len(plan.Handles), Handles: plan.Handles, Steps: plan.Steps,
			Source: plan.Source, Joined: plan.Joined, Groups: plan.Groups, Env: r.rankEnv(plan, local, ranks[local]),
			Timeout: r.a.cfg.LiveTimeout.Seconds(),
		}}
	})
	if all, err := r.awaitTaken(ctx, plan, change, ranks, to); err != nil || !all {
		return err // what is wrong with one is news
	}
	if !r.at.alone() {
		if err := r.at.round.Store.Set(ctx, liveMembersPrefix+strconv.Itoa(r.at.round.Rank), []byte(r.a.cfg.Host)); err != nil {
			return storeError(err)
		}
	}
	r.a.log.Warn("live: the workers resume", "round", r.at.round.Round, "world_size", len(plan.Handles),
		"joined", len(plan.Joined), "here", len(to), "took", time.Since(began).Round(time.Millisecond))
	r.a.emitElsewhere(Reconfigured{len(plan.Handles), len(plan.Handles) - len(plan.Joined)})
	return nil
}

// awaitTaken waits until this host's members have taken part in a change, and reports whether they
// have, any of them. It kills those that do not in time: first those that join.
func (r *liveRound) awaitTaken(ctx context.Context, plan *live.Plan, change int, ranks map[int]int,
	members map[int]*link.Worker) (all bool, err error) {
	var failed *live.Said
	took := 0
	taken := func(limit time.Duration) error {
		soon, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return r.link.Await(soon, func(s *link.State) (all bool) {
			all, took, failed = s.Host.Taken(change, ranks)
			return all
		})
	}
	late := func(of map[int]*link.Worker) {
		r.killLate(ctx, of, "does not take part", func(x *link.Worker) bool { return x.TookPart(change) })
	}
	err = taken(r.a.cfg.LiveTimeout)
	if n := len(plan.Joined); err != nil && ctx.Err() == nil && n > 0 && n < len(plan.Handles) {
		// They may wait for one that joins, on any host, and that is not a reason to lose the state.
		joins := maps.Clone(members)
		maps.DeleteFunc(joins, func(local int, _ *link.Worker) bool { return !slices.Contains(plan.Joined, ranks[local]) })
		late(joins)
		err = taken(r.a.cfg.PeerTimeout)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return false, err
	case err != nil:
		late(members)
		return false, nil
	}
	return failed == nil && (took > 0 || len(ranks) == 0), nil
}

// warnOfLoss notes where a membership begins, and says in the log if members have completed steps that
// are lost.
func (r *liveRound) warnOfLoss(plan *live.Plan) {
	most, step := slices.Max(plan.Steps), plan.Steps[max(plan.Source, 0)]
	if again := r.link.Reached(most); again && len(plan.Joined) == len(plan.Handles) {
		r.a.log.Warn("live: no worker with the state of the training is left; the training starts over",
			"step", most)
	}
	if most-step > 1 && plan.Leader() == r.at.round.Rank {
		r.a.log.Warn("live: a worker that has completed more steps comes back; they are lost, because it takes the others' state",
			"step", step, "lost", most-step)
	}
}

// rankEnv is what of a worker's environment changes with its rank.
func (r *liveRound) rankEnv(plan *live.Plan, localRank, rank int) map[string]string {
	n := strconv.Itoa(len(plan.Handles))
	return map[string]string{
		"RANK": strconv.Itoa(rank), "WORLD_SIZE": n, "ROLE_RANK": strconv.Itoa(rank), "ROLE_WORLD_SIZE": n,
		"LOCAL_RANK": strconv.Itoa(localRank), "LOCAL_WORLD_SIZE": strconv.Itoa(len(plan.Locals[r.at.round.Rank])),
		"GROUP_RANK": strconv.Itoa(r.at.round.Rank), "GROUP_WORLD_SIZE": strconv.Itoa(r.at.round.WorldSize),
		"MASTER_ADDR": r.at.round.MasterAddr, "MASTER_PORT": strconv.Itoa(r.at.round.MasterPort),
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
func (r *liveRound) watchLive(ctx context.Context, change int) error {
	w, f := r.link, r.formed.Load()
	var failed *live.Said
	joins, wanted := false, ""
	if f.leader {
		r.whenSet(ctx, liveJoinKey, func(*link.State) { joins = true })
	}
	counted, ready := 0, 0
	for {
		enough := false
		err := w.Await(ctx, func(s *link.State) bool {
			failed, enough, ready = s.Host.FailedMember(change), joins, s.Host.Joining()
			if f.leader {
				wanted = r.wanted
			}
			return failed != nil || joins || ready > counted || wanted != ""
		})
		if err == nil && failed == nil && !enough && wanted == "" {
			enough, err = r.enough(ctx, f, ready, ready-counted)
			counted = ready
		}
		switch {
		case err != nil:
			return err
		case failed != nil:
			// Its reason may be on its way; then life ends, or the training has.
			if sleep.For(ctx, r.a.cfg.PeerTimeout) != nil {
				return context.Cause(ctx)
			}
			line, _, _ := strings.Cut(failed.Error, "\n")
			return r.changeAgain(ctx, "a collective failed on "+r.a.cfg.Host+": "+text.Line(line, peers.MaxText))
		case wanted != "" || enough && f.leader:
			return r.planChange(ctx, change, cmp.Or(wanted, "workers join"))
		case enough:
			if err := r.at.round.Store.Set(ctx, liveJoinKey, []byte(r.a.cfg.Host)); err != nil {
				return storeError(err)
			}
		}
	}
}

// enough reports whether the workers that are ready make a replica group: all of this host, of which some
// are not counted yet.
func (r *liveRound) enough(ctx context.Context, f *membership, ready, more int) (bool, error) {
	if f.lacks <= 1 || r.at.alone() {
		return ready >= f.lacks, nil
	}
	n, err := r.at.round.Store.Add(ctx, liveReadyKey, int64(more))
	return n >= int64(f.lacks), storeError(err)
}

// changeAgain asks for another round at once, unless too many in a row did not help.
func (r *liveRound) changeAgain(ctx context.Context, cause string) error {
	n := r.a.fruitless.Load() + 1
	switch {
	case r.formed.Load() == nil:
		return fmt.Errorf("the workers of this host have not become a group: %s", cause)
	case n > live.MostFruitless:
		return fmt.Errorf("%d changes in a row have not helped: %s", n, cause)
	}
	r.at.send(news{ev: decide.EvLiveChange, record: &peers.Record{At: -1, Cause: cause, Fruitless: int(n)}})
	<-ctx.Done()
	return context.Cause(ctx)
}

// noteLoss notes that a worker of a live job has failed, and why.
func (r *liveRound) noteLoss(x process.Exit, cause *failure.ProcessFailure) {
	r.link.Ended(x.LocalRank)
	if _, known := r.lostWorkers[x.LocalRank]; !known {
		r.losses = append(r.losses, cause)
	}
	r.lostWorkers[x.LocalRank] = x
}

// noteLosses notes the workers that have failed since the last news of one.
func (r *liveRound) noteLosses() {
	for {
		select {
		case x := <-r.at.team.group.Failed():
			r.noteLoss(x, r.at.why.explainExit(x, nil, nil))
		default:
			return
		}
	}
}

// replaceFailed starts another worker in place of one that had no place in the group yet. If that
// cannot be done, the failure is news again.
func (r *liveRound) replaceFailed(n *news) *news {
	r.a.judge.carriedOut(atOnce(r.at.status.verdict))
	r.at.status.verdict = nil
	r.a.restarts.used++
	r.a.log.Warn("live: a worker failed before it joined the group; starting another", "cause", n.cause.Error())
	if n.stays = !r.replace(n.exit.LocalRank); n.stays {
		return n
	}
	return nil
}

// continueAfterTraining handles news after the training's end, which change nothing: a worker is not
// needed any more, nor a host. The others count a lost host at the exit barrier.
func (r *liveRound) continueAfterTraining(n news, act decide.Action) {
	switch n.ev {
	case decide.EvFailing:
		r.link.Ended(n.exit.LocalRank)
		r.at.exclude(n.exit)
		return
	case decide.EvLiveChange, decide.EvNodesWaiting:
		return
	}
	if n.ev == decide.EvNodeGone && n.change.Rank >= 0 {
		r.at.run.wg.Go(func() {
			if err := r.a.peers(r.at).CountGone(r.at.run.life, n.change.Rank); err != nil && r.at.run.life.Err() == nil {
				r.a.log.Debug("exit barrier: cannot count a node that is gone", "error", err)
			}
		})
	}
	r.a.log.Info("a host is lost after the training has ended; going on", r.at.notify.changeAttrs(n.change)...)
	if act == decide.ActInterrupt { // ranks may wait for that host's
		r.a.pauseWorkers(&link.Message{Type: "change", Urgent: true, Reason: n.why()})
	}
}

// liveRecord is what the other nodes have to hear before the workers of this one continue in a new
// round; nil if they know, since it is their news.
func (r *liveRound) liveRecord(n *news) *peers.Record {
	rec := &peers.Record{Node: r.at.round.Rank, Host: r.a.cfg.Host, Rank: -1, Restarts: r.a.restarts.used, At: -1}
	switch {
	case n.ev == decide.EvLiveChange:
		rec.Cause, rec.At, rec.Fruitless = n.record.Cause, n.record.At, n.record.Fruitless
	case n.ev == decide.EvNodesWaiting && n.change.Kind == rendezvous.NodesWaiting:
		rec.Cause = hostJoins
	case n.ev == decide.EvFailing, n.ev == decide.EvFailed, n.ev == decide.EvLostPeers:
		failures := r.at.outcome.failures
		if n.ev == decide.EvFailing {
			failures = []*failure.ProcessFailure{n.cause}
		} else {
			r.losses = append(r.losses, failures...)
		}
		if rec = r.at.notify.newRecord(failures, nil, false); r.a.restarts.left() <= 0 {
			rec.Restarts = r.a.restarts.used // nobody is replaced
		}
		rec.At = -1
	default:
		return nil
	}
	rec.Live = true
	return rec
}

// keepWorkers ends the attempt, has its workers pause, and keeps them for the next one.
func (r *liveRound) keepWorkers(n *news) {
	m := &link.Message{Type: "change", Urgent: true}
	if r := n.record; r != nil && !r.Live {
		m.Reason = r.Who()
	} else if r != nil {
		m.Reason, m.Urgent, m.At = r.Who(), r.At < 0, max(r.At, 0)
	} else if m.Reason = n.why(); n.change.Node != "" {
		m.Reason = "host lost: " + n.change.Node
	}
	if n.ev != decide.EvPeerLive && n.ev != decide.EvPeerRestarts {
		r.a.judge.carriedOut(atOnce(r.at.status.verdict))
	}
	r.a.log.Warn("live: the workers pause", "run_id", r.a.cfg.Rendezvous.RunID(), "round", r.at.round.Round,
		"cause", m.Reason, "workers_here", len(r.link.Members()))
	r.a.emit(r.at, Resting{m.Reason})
	switch {
	case n.record != nil && n.record.Fruitless > 0:
		r.a.fruitless.Store(max(r.a.fruitless.Load(), int32(min(n.record.Fruitless, live.MostFruitless+1))))
	case n.ev != decide.EvLiveChange && n.ev != decide.EvNodesWaiting || n.record == nil || n.record.At >= 0:
		r.a.fruitless.Store(0)
	}
	r.a.pauseWorkers(m)
	r.mu.Lock()
	lost := maps.Clone(r.excluded)
	r.mu.Unlock()
	maps.Copy(lost, r.lostWorkers)
	r.a.kept = &kept{team: r.at.team, lost: lost, restarts: r.a.restarts.used}
	r.kept.Store(true) // before released is closed: who waits for that looks at it
	close(r.released)
}

// adopt continues with workers that were kept, and starts others in place of those that failed.
func (r *liveRound) adopt() {
	k := r.a.kept
	r.a.kept = nil
	ranks := r.at.team.ranks
	r.at.team, r.excluded = k.team, k.lost
	r.at.team.ranks = ranks
	for _, i := range slices.Sorted(maps.Keys(r.excluded)) {
		if r.a.restarts.leftAfter(k.restarts) > 0 && !r.link.IsOver() {
			k.restarts++
			r.a.restarts.raise(k.restarts)
			r.replace(i)
		} else {
			r.link.Forget(i)
		}
	}
	r.a.published.ran(r.at)
	r.a.emit(r.at, WorkersStarted{Step: Step{time.Now(), nil}, PIDs: r.at.team.group.PIDs(), Live: true})
}

// replace starts a worker in place of one that has failed, and reports whether it has.
func (r *liveRound) replace(localRank int) bool {
	env := r.at.workers.workerEnv(r.a.restarts.used, localRank)
	maps.Copy(env, r.link.Env(localRank))
	err := r.at.team.group.Replace(localRank, r.a.cfg.Spec.Args(localRank, r.at.team.ranks.Base+localRank), env)
	if err != nil {
		r.link.Forget(localRank)
		r.a.log.Warn("live: cannot start a worker in place of one that failed", "local_rank", localRank, "error", err)
		return false
	}
	r.mu.Lock()
	delete(r.excluded, localRank)
	r.mu.Unlock()
	if r.link.IsOver() { // awaitEnd may not have seen this worker
		r.at.exclude(process.Exit{LocalRank: localRank, StoppedBy: syscall.SIGKILL})
		r.at.team.group.Signal(localRank, syscall.SIGKILL)
	}
	return true
}

// factsOfFailure finds out what decide.Next has to know of a worker's failure, and notes it, and those
// of other workers, unless the decision is about this one alone. The policy decides once it can.
func (r *liveRound) factsOfFailure(n *news, f *decide.Facts) {
	n.cause = r.at.why.explainExit(n.exit, nil, func() *evidence.GPUFaults { return r.at.why.findXids(nil) }) // nvidia-smi takes too long
	f.Follows, f.Silent = n.cause.Stopped() || n.cause.LostPeer(), saysNothing(n.cause)
	f.Unsettled = r.a.judge.engine != nil && n.waited == 0 && r.a.cfg.Policy.Unsettled(r.a.judge.failureOf(r.at, n.cause))
	if f.Member = n.stays || r.link == nil; !f.Member {
		r.link.Look(func(s *link.State) {
			x := s.Workers[n.exit.LocalRank]
			f.Member = x != nil && x.Member
		})
	}
	changes := f.Formed && !f.Over
	if f.Over && !f.Member || f.Formed && f.Unsettled {
		return // it is not needed any more, or looked at again
	}
	if changes && !f.Member && f.RestartsLeft > 0 {
		if f.All = r.a.judge.reach(r.at, n.cause); !f.All {
			return // it is replaced; the others continue
		}
	}
	if r.link != nil {
		r.noteLoss(n.exit, n.cause)
		r.noteLosses()
		f.Left = len(r.link.Left()) > 0
	}
	if changes && (f.Left || !f.Alone && f.RestartsLeft > 0) || !f.Follows && !f.Silent && !f.Unsettled {
		f.All = r.a.judge.reach(r.at, n.cause)
	}
	f.Verdict = r.at.verdictAction()
}

// continueInNewRound ends the attempt. With ActKeep the workers that are left pause, and the next
// round has them; with ActReturn, or if none is left by now, it starts new ones. The other nodes
// hear of it first, unless they know. If a record of theirs decides otherwise, it is returned as news.
func (r *liveRound) continueInNewRound(ctx context.Context, n *news, act decide.Action) (other *news) {
	counted := r.a.restarts.used
	if rec := r.liveRecord(n); rec != nil {
		if other := r.at.notify.put(ctx, rec); other != nil {
			return other
		}
		n.record = rec
	} else if n.record != nil {
		if theirs, err := failure.Decode(n.record.Failures, r.at.round.ClockOffset); err == nil {
			r.losses = append(r.losses, theirs...)
		}
		r.a.restarts.raise(n.record.Restarts)
		r.a.judge.carriedOutElsewhere(r.at, atOnce(n.record.Decision))
	}
	r.noteLosses()
	left := len(r.link.Left()) > 0
	if n.ev == decide.EvFailing && r.at.alone() && !left {
		n.record = nil
		return n // the last one has failed meanwhile: next decides again
	}
	if last := r.formed.Load(); last != nil {
		paid := last.paid || n.record != nil && n.record.Rank >= 0 && n.record.Restarts > counted
		r.a.carried = &membership{ranks: last.ranks, pending: true, losses: slices.Concat(last.losses, r.losses), paid: paid}
	}
	if act == decide.ActReturn || !left && !r.link.IsOver() {
		r.at.workers.stopWorkers(ctx, syscall.SIGTERM)
		if n.ev == decide.EvFailing || n.ev == decide.EvFailed || n.ev == decide.EvLostPeers {
			r.at.why.explain(nil)
			r.a.restart(r.at, n.record, true)
		}
		return nil
	}
	r.keepWorkers(n)
	return nil
}
