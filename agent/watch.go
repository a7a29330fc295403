package agent

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// attempt is this host's part of one round, from the moment when the agent asks for the
// round until its workers have ended. The goroutine of Run owns it: it alone decides and
// acts (watch). Other goroutines send it news; the comment of each part says what else they
// may touch. decide.Next decides differently in each phase.
type attempt struct {
	// round is set once, before any other goroutine has the attempt; so are the fields of
	// goroutines. It is nil in an attempt that was not admitted.
	round    *rendezvous.Info
	team     team
	status   status
	outcome  outcome
	run      goroutines
	live     *liveRound
	evidence *evidence.Collector // of the workers; it has its own locks
	why      explainer
	notify   notifier
	workers  runner
	ending   ending
}

// team is the workers of an attempt. The goroutine of Run sets ranks at the end of the
// phase assigning and the rest at the beginning of running. It then publishes the group
// (published.ran) or starts the goroutines that use it; after that nobody changes it, and all
// may read it.
type team struct {
	ranks rendezvous.Ranks
	logs  *logs.Attempt
	parts *parts
	group Group     // nil if the workers could not be started
	began time.Time // when the workers were about to start
}

// status is how far an attempt has come. Only the goroutine of Run touches it.
type status struct {
	phase     decide.Phase
	since     time.Time           // when assigning began or, in finished, the wait at the exit barrier
	record    *peers.Record       // what this node has announced of its failure; nil before the phase failing
	unwritten atomic.Bool         // the store has not taken the last record
	verdict   *policy.Decision    // the policy's on the failure; nil before it, where no rule applies and without a policy
	lostHost  string              // the name of a lost host that the verdict is about; "" if it is about a worker
	emitted   bool                // AttemptFailed for a failure of this host
	preempted *failure.Preemption // why the attempt ended, once its workers have; nil if for something else

	gone    map[int]bool       // the group ranks of nodes that are no longer in the round
	lost    *rendezvous.Change // the last of those
	overdue bool               // in finished: the exit barrier's timeout is over, and others need this node
	alarm   *time.Timer        // the deadline of listening and finished; nil where none is set

	flushed  bool   // finishLogs was called
	diskFull string // the log directory if finishLogs found no room left in it
}

// outcome is what became of the workers. The goroutine that waits for the group sets res
// and exits before it closes ended; then they are the goroutine of Run's, which sets
// failures, once (explain). Of workers that could not be started there is no res, and
// nothing closes ended.
type outcome struct {
	res      *process.Result
	exits    map[int]process.Exit // of res, or of a worker that could not be started
	failures []*failure.ProcessFailure
}

// goroutines is how the attempt starts goroutines, hears from them and ends them. close ends
// life and waits for wg. A function that starts a goroutine without wg waits for it itself.
type goroutines struct {
	life    context.Context
	end     context.CancelFunc
	wg      sync.WaitGroup
	news    chan news     // has room for one: the goroutine of Run may tell itself its ranks
	started chan struct{} // closed when the workers run (published.ran)
	ended   chan struct{} // closed when they have ended
}

// news is an event and what is known of it.
type news struct {
	ev     decide.Event
	ranks  rendezvous.Ranks  // EvAssigned
	exit   process.Exit      // EvFailing
	waited time.Duration     // EvFailing: for what the worker has written to stderr
	change rendezvous.Change // changes of the set of nodes
	host   string            // of the node that is lost, if a policy needs its name; EvAsked: where it was asked
	record *peers.Record     // EvPeer…: of another node; of this one once announced
	err    error             // EvAssignFailed, EvStartFailed, EvDisconnected, EvBarrierBroken

	// Of a worker's failure (EvFailing): why it failed, as far as is known, and whether no other can
	// take its place.
	cause *failure.ProcessFailure
	stays bool
}

func (a *Agent) newAttempt(ctx context.Context) *attempt {
	life, end := context.WithCancel(ctx)
	at := &attempt{
		status: status{phase: decide.Assigning, gone: map[int]bool{}},
		run: goroutines{life: life, end: end, news: make(chan news, 1), started: make(chan struct{}),
			ended: make(chan struct{})},
	}
	at.live = &liveRound{a: a, at: at, link: a.live, excluded: map[int]process.Exit{},
		lostWorkers: map[int]process.Exit{}, released: make(chan struct{})}
	at.why, at.notify, at.workers, at.ending = explainer{a, at}, notifier{a, at}, runner{a, at}, ending{a, at}
	at.evidence = evidence.New(a.evidence, examined{a, at})
	return at
}

// close ends the goroutines of the attempt.
func (at *attempt) close() {
	at.run.end()
	at.run.wg.Wait()
	at.setAlarm(0)
}

// alone reports whether there is no other node in the round.
func (at *attempt) alone() bool { return at.round.WorldSize == 1 }

// send hands news to the goroutine of Run. News that nobody takes any more are dropped: close ends life before
// it waits for the goroutines that send.
func (at *attempt) send(n news) {
	select {
	case at.run.news <- n:
	case <-at.run.life.Done():
	}
}

// outlives waits for d, and reports whether the attempt has not ended by then.
func (at *attempt) outlives(d time.Duration) bool {
	return sleep.For(at.run.life, d) == nil
}

// setAlarm sets the one deadline of the attempt; 0 means none.
func (at *attempt) setAlarm(after time.Duration) {
	if at.status.alarm != nil {
		at.status.alarm.Stop()
		at.status.alarm = nil
	}
	if after > 0 {
		at.status.alarm = time.NewTimer(after)
	}
}

// watch does what decide.Next says about everything that happens in the attempt. It returns
// neither a result nor an error when another round is due. An action ends the attempt, or is
// followed by a wait, or makes news of its own: the workers run, or another node was the
// first to announce a failure.
func (a *Agent) watch(ctx context.Context, at *attempt) (*Result, error) {
	for n := a.wait(ctx, at); ; {
		if n.ev == decide.EvAssigned || n.ev == decide.EvAssignFailed {
			at.team.ranks = n.ranks
			a.emit(at, RanksAssigned{Step{at.status.since, n.err}, a.before()})
		}
		state, act := decide.Next(n.ev, at.status.phase, a.facts(at, &n))
		if !act.IsLive() {
			a.emitDecided(at, n, state, act)
		}
		other, ends := a.act(ctx, at, &n, act)
		switch {
		case other != nil:
			n = *other
		case ends:
			return a.end(ctx, at, n, state, act)
		default:
			n = a.wait(ctx, at)
		}
	}
}

// facts finds out what decide.Next has to know of news. It may take note of workers that have failed,
// and ask the policy, whose verdict stands then.
func (a *Agent) facts(at *attempt, n *news) decide.Facts {
	f := decide.Facts{RestartsLeft: a.restarts.left() + at.paid(), Alone: at.alone(),
		Joins: n.change.Kind == rendezvous.NodesWaiting, Holder: n.change.Rank < 0,
		Drained: n.record != nil && n.record.Leaves()}
	f.Live = a.live != nil && at.status.phase == decide.Running
	f.Over = (f.Live || a.live != nil && at.status.phase == decide.Finished) && a.live.IsOver()
	if f.Live {
		m := at.live.formed.Load()
		f.Formed, f.Pending = m != nil, m != nil && m.pending
		f.Left, f.Awaited = len(a.live.Left()) > 0, n.ev != decide.EvNodeGone || m.has(n.change.Rank)
	}
	if n.ev == decide.EvFailing {
		if at.status.phase == decide.Running {
			at.live.factsOfFailure(n, &f)
		}
		return f
	}
	if !f.Over || !n.ev.IsChange() {
		f.Verdict = a.judge.consult(at, *n)
	}
	if (n.ev == decide.EvFailed || n.ev == decide.EvLostPeers) && f.Formed && !f.Over && !f.Alone && f.RestartsLeft > 0 {
		f.All = a.judge.reach(at, at.outcome.failures...)
	}
	return f
}

// act carries out what does not end the attempt, and what other nodes have to hear before it does:
// ends says which. If another node was first, whose record decides then, it returns that as news.
func (a *Agent) act(ctx context.Context, at *attempt, n *news, act decide.Action) (other *news, ends bool) {
	switch act {
	case decide.ActWatch:
		at.notify.logStays(ctx, *n)
	case decide.ActStart:
		started := at.workers.startGroup(ctx)
		return &started, false
	case decide.ActBarrier:
		at.status.phase = decide.Finished
		a.emit(at, BarrierEntered{})
		a.enterBarrier(at)
	case decide.ActStopOthers, decide.ActAnnounceLater, decide.ActAnnounce, decide.ActAnnounceFinal:
		return at.notify.announceEarly(ctx, *n, act), false
	case decide.ActListen:
		at.status.phase = decide.Listening
		at.setAlarm(a.cfg.PeerTimeout)
	case decide.ActLookAgain:
		at.notify.announceLater(*n)
	case decide.ActReplace:
		return at.live.replaceFailed(n), false
	case decide.ActSchedule:
		a.live.Update(func(*link.State) { at.live.wanted = hostJoins }) // the agent with rank 0 waits for that (watchLive)
	case decide.ActIgnore, decide.ActInterrupt:
		at.live.continueAfterTraining(*n, act)
	case decide.ActKeep, decide.ActReturn:
		return at.live.continueInNewRound(ctx, n, act), true
	case decide.ActRejoin:
		return at.notify.announceRejoin(ctx, n), true
	case decide.ActRestart, decide.ActFail, decide.ActDepart:
		return at.notify.announce(ctx, n, act == decide.ActFail), true
	default:
		return nil, true
	}
	return nil, false
}

// end carries out an action that ends the attempt.
func (a *Agent) end(ctx context.Context, at *attempt, n news, state State, act decide.Action) (*Result, error) {
	switch act {
	case decide.ActRejoin:
		at.notify.emitLoss(n)
		a.judge.carriedOut(at.status.verdict)
		at.notify.logRejoin(n)
		at.workers.stopWorkers(ctx, syscall.SIGTERM)
	case decide.ActFollow:
		a.follow(ctx, at, n.record)
	case decide.ActRestart:
		a.restart(at, n.record, false)
	case decide.ActFail:
		return at.ending.fail(ctx, state, n)
	case decide.ActDepart:
		return at.ending.depart(state), nil
	case decide.ActFinish:
		return at.ending.finish(ctx, n), nil
	case decide.ActStop:
		return at.ending.leave(ctx, state)
	case decide.ActEnded:
		return at.ending.endedElsewhere(ctx, n)
	case decide.ActAbort:
		return at.ending.abort(ctx, n)
	case decide.ActPreempt:
		return at.ending.stopPreempted(ctx, n.record), nil
	case decide.ActGiveUp:
		return at.ending.giveUp(ctx, n)
	}
	return nil, nil // another round is due
}

// wait returns what happens next.
func (a *Agent) wait(ctx context.Context, at *attempt) news {
	var ended <-chan struct{}
	var firstEnd <-chan process.Exit
	if at.status.phase == decide.Running || at.status.phase == decide.Failing {
		ended = at.run.ended
		if at.status.phase == decide.Running && (!at.alone() || a.live != nil) {
			firstEnd = at.team.group.Failed()
		}
	}
	var alarm <-chan time.Time
	if at.status.alarm != nil {
		alarm = at.status.alarm.C
	}
	changes := a.cfg.Rendezvous.Changes()
	for {
		select {
		case <-ended:
			return at.workers.groupEnded(ctx)
		case exit := <-firstEnd:
			if a.isToldLast(ctx, exit) {
				return news{ev: decide.EvSignal}
			}
			return news{ev: decide.EvFailing, exit: exit}
		case n := <-at.run.news:
			return n
		case c, ok := <-changes:
			if !ok {
				changes = nil // nothing more will be heard
			} else if c.Kind == rendezvous.Closed && ctx.Err() != nil {
				return news{ev: decide.EvSignal} // who was asked to stop the job has ended before
			} else if n := at.notify.changed(c); n.ev != "" {
				return n
			}
		case <-alarm:
			if at.status.phase == decide.Listening {
				return news{ev: decide.EvNoNews}
			}
			return a.overdue(at)
		case <-ctx.Done():
			return news{ev: decide.EvSignal}
		}
	}
}

// startPause is how long the agent waits for what it was short of.
const startPause = time.Second

// isShortage reports whether the system is short of something that other programs may give back.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EAGAIN) ||
		errors.Is(err, syscall.ENOMEM)
}

// stopSignal is what workers get when the agent stops for cause.
func stopSignal(cause error) syscall.Signal {
	if s, ok := errors.AsType[*process.SignalError](cause); ok {
		return s.Signal
	}
	return syscall.SIGTERM
}

// why is the reason for a new round.
func (n *news) why() string {
	if n.record != nil {
		return n.record.Cause
	}
	switch n.change.Kind {
	case rendezvous.NodesWaiting:
		return "other hosts join the job"
	case rendezvous.NodeLost:
		if n.change.Rank < 0 {
			return "the agent that held the rendezvous is gone"
		}
		return "a node of the round is lost: it died or cannot be reached"
	case rendezvous.NodeLeft:
		return "a node of the round has left"
	case rendezvous.Evicted:
		return "the other nodes count this host as lost"
	case rendezvous.Suspended:
		return "etcd does not answer, and other nodes may begin a round of their own elsewhere"
	}
	return n.change.Kind.String()
}

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
