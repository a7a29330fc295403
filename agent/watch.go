package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
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

// send hands news to the goroutine of Run.
func (at *attempt) send(n news) {
	select {
	case at.run.news <- n:
	case <-at.run.life.Done():
	}
}

// outlives waits for d, and reports whether the attempt has not ended by then.
func (at *attempt) outlives(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-at.run.life.Done():
		return false
	}
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
	f := decide.Facts{RestartsLeft: a.restartsLeft() + at.paid(), Alone: at.alone(),
		Joins: n.change.Kind == rendezvous.NodesWaiting, Holder: n.change.Rank < 0,
		Drained: n.record != nil && n.record.Leaves()}
	f.Live = a.live != nil && at.status.phase == decide.Running
	f.Over = (f.Live || a.live != nil && at.status.phase == decide.Finished) && a.live.isOver()
	if f.Live {
		m := at.live.formed.Load()
		f.Formed, f.Pending = m != nil, m != nil && m.pending
		f.Left, f.Awaited = len(a.live.left()) > 0, n.ev != decide.EvNodeGone || m.has(n.change.Rank)
	}
	if n.ev == decide.EvFailing {
		if at.status.phase == decide.Running {
			a.factsOfFailure(at, n, &f)
		}
		return f
	}
	if !f.Over || !n.ev.IsChange() {
		f.Verdict = a.consult(at, *n)
	}
	if (n.ev == decide.EvFailed || n.ev == decide.EvLostPeers) && f.Formed && !f.Over && !f.Alone && f.RestartsLeft > 0 {
		f.All = a.reach(at, at.outcome.failures...)
	}
	return f
}

// act carries out what does not end the attempt, and what other nodes have to hear before it does:
// ends says which. If another node was first, whose record decides then, it returns that as news.
func (a *Agent) act(ctx context.Context, at *attempt, n *news, act decide.Action) (other *news, ends bool) {
	switch act {
	case decide.ActWatch:
		a.logStays(ctx, at, *n)
	case decide.ActStart:
		started := a.startGroup(ctx, at)
		return &started, false
	case decide.ActBarrier:
		at.status.phase = decide.Finished
		a.emit(at, BarrierEntered{})
		a.enterBarrier(at)
	case decide.ActStopOthers, decide.ActAnnounceLater, decide.ActAnnounce, decide.ActAnnounceFinal:
		return a.announceEarly(ctx, at, *n, act), false
	case decide.ActListen:
		at.status.phase = decide.Listening
		at.setAlarm(a.cfg.PeerTimeout)
	case decide.ActLookAgain:
		a.announceLater(at, *n)
	case decide.ActReplace:
		return a.replaceFailed(at, n), false
	case decide.ActSchedule:
		a.live.update(func() { at.live.wanted = hostJoins }) // the agent with rank 0 waits for that (watchLive)
	case decide.ActIgnore, decide.ActInterrupt:
		a.continueAfterTraining(at, *n, act)
	case decide.ActKeep, decide.ActReturn:
		return a.continueInNewRound(ctx, at, n, act), true
	case decide.ActRejoin:
		return a.announceRejoin(ctx, at, n), true
	case decide.ActRestart, decide.ActFail, decide.ActDepart:
		return a.announce(ctx, at, n, act == decide.ActFail), true
	default:
		return nil, true
	}
	return nil, false
}

// end carries out an action that ends the attempt.
func (a *Agent) end(ctx context.Context, at *attempt, n news, state State, act decide.Action) (*Result, error) {
	switch act {
	case decide.ActRejoin:
		a.emitLoss(at, n)
		a.carriedOut(at.status.verdict)
		a.logRejoin(at, n)
		a.stopWorkers(ctx, at, syscall.SIGTERM)
	case decide.ActFollow:
		a.follow(ctx, at, n.record)
	case decide.ActRestart:
		a.restart(at, n.record, false)
	case decide.ActFail:
		return a.fail(ctx, at, state, n)
	case decide.ActDepart:
		return a.depart(at, state), nil
	case decide.ActFinish:
		return a.finish(ctx, at, n), nil
	case decide.ActStop:
		return a.leave(ctx, at, state)
	case decide.ActEnded:
		return a.endedElsewhere(ctx, at, n)
	case decide.ActAbort:
		return a.abort(ctx, at, n)
	case decide.ActPreempt:
		return a.stopPreempted(ctx, at, n.record), nil
	case decide.ActGiveUp:
		return a.giveUp(ctx, at, n)
	}
	return nil, nil // another round is due
}

// restartsLeft is how many more restarts the job may use by this host's Config. It is
// negative where the other hosts have had more.
func (a *Agent) restartsLeft() int { return a.cfg.MaxRestarts - a.restarts }

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
			return a.groupEnded(ctx, at)
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
			} else if n := a.changed(at, c); n.ev != "" {
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

// startGroup starts the workers.
func (a *Agent) startGroup(ctx context.Context, at *attempt) news {
	at.status.phase = decide.Running
	a.armWatchdog()
	had := a.kept != nil
	if had {
		a.adopt(at)
	} else {
		if a.live != nil {
			a.live.begin()
		}
		if err := a.startWorkers(at); err != nil {
			a.finishLogs(ctx, at)
			return a.notStarted(at, err)
		}
	}
	if a.live != nil {
		at.live.formed.Store(a.carried)
		a.carried = nil
		change := a.live.lastChange()
		at.run.wg.Go(func() { at.live.form(change, had) })
	}
	if a.cfg.HangTimeout > 0 {
		at.run.wg.Go(func() { at.evidence.WatchProgress(at.run.life, at.run.ended, peers.FailedKey) })
	}
	at.run.wg.Go(func() {
		// It has no deadline: the group ends by itself, or because it is stopped.
		life, cancel := context.WithCancel(context.WithoutCancel(at.run.life))
		defer cancel()
		at.run.wg.Go(func() {
			select {
			case <-at.live.released:
				cancel()
			case <-life.Done():
			}
		})
		res, err := at.team.group.Wait(life)
		if err == nil {
			res = at.withoutExcluded(res)
			at.outcome.res, at.outcome.exits = res, res.Exits
			a.published.ended(res.Exits)
		}
		if !at.live.kept.Load() {
			close(at.run.ended)
		}
	})
	at.run.wg.Go(func() {
		select {
		case <-a.cfg.Hurry:
			at.team.group.Kill()
		case <-at.run.ended:
		case <-at.live.released:
		}
	})
	if !at.alone() {
		at.run.wg.Go(func() { a.hear(at) })
	}
	return news{ev: decide.EvStarted}
}

// startPause is how long the agent waits for what it was short of.
const startPause = time.Second

// isShortage reports whether the system is short of something that other programs may give back.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EAGAIN) ||
		errors.Is(err, syscall.ENOMEM)
}

// notStarted reports whether another attempt may succeed.
func (a *Agent) notStarted(at *attempt, err error) news {
	if !isShortage(err) {
		return news{ev: decide.EvStartFailed, err: err}
	}
	if _, ok := errors.AsType[*process.StartError](err); !ok {
		err = &process.StartError{Path: a.cfg.Spec.Entrypoint, Err: err}
	}
	a.explain(at, err)
	at.outlives(startPause)
	return news{ev: decide.EvFailed, err: err}
}

// groupEnded says how the workers ended by themselves.
func (a *Agent) groupEnded(ctx context.Context, at *attempt) news {
	a.finishLogs(ctx, at)
	switch {
	case at.outcome.res.Uninterruptible:
		return news{ev: decide.EvUnhealthy}
	case !at.outcome.res.IsFailed():
		return news{ev: decide.EvSucceeded}
	case a.isToldLast(ctx, slices.Collect(maps.Values(at.outcome.res.Failures))...):
		return news{ev: decide.EvSignal}
	}
	if a.explain(at, nil); at.status.phase == decide.Running && !at.alone() && onlyLostPeers(at.outcome.failures) {
		return news{ev: decide.EvLostPeers}
	}
	return news{ev: decide.EvFailed}
}

// stopWorkers stops the workers, if they run, and returns when they have ended and
// all that they wrote has gone where it should.
func (a *Agent) stopWorkers(ctx context.Context, at *attempt, sig syscall.Signal) {
	if at.team.group == nil || at.status.phase != decide.Running && at.status.phase != decide.Failing {
		return
	}
	began := time.Now()
	at.team.group.Close(sig, a.cfg.ShutdownTimeout) // what it could not end is in the exits
	<-at.run.ended
	a.emit(at, WorkersStopped{time.Since(began)})
	a.finishLogs(ctx, at)
}

// leave stops the workers because the agent was told to.
func (a *Agent) leave(ctx context.Context, at *attempt, state State) (*Result, error) {
	cause := context.Cause(ctx)
	p := a.preemption(cause)
	a.log.Warn("shutting down workers", "cause", cause, "grace", max(a.cfg.ShutdownTimeout, 0))
	if p != nil {
		early := *p // a copy: stopForGood adds the workers to p meanwhile
		at.run.wg.Go(func() { a.announcePreemption(at, &early) })
		return a.stopForGood(ctx, at, p), cause
	}
	a.emit(at, Stopping{State: state, Why: cause.Error()})
	a.stopWorkers(ctx, at, stopSignal(cause))
	r := a.stopped(at, state)
	r.Left = true
	return r, cause
}

// abort stops the workers because the agent cannot go on.
func (a *Agent) abort(ctx context.Context, at *attempt, n news) (*Result, error) {
	err := n.err
	if n.ev == decide.EvDisconnected {
		err = errors.New("lost the connection to the rendezvous; the workers of this host were stopped")
		if n.change.Err != nil {
			err = fmt.Errorf("%w: %w", err, n.change.Err)
		}
	}
	a.stopWorkers(ctx, at, syscall.SIGTERM)
	return a.stopped(at, Failed), err
}

// stopSignal is what workers get when the agent stops for cause.
func stopSignal(cause error) syscall.Signal {
	if s, ok := errors.AsType[*process.SignalError](cause); ok {
		return s.Signal
	}
	return syscall.SIGTERM
}

// logRejoin logs why a new round begins.
func (a *Agent) logRejoin(at *attempt, n news) {
	if n.ev == decide.EvAsked {
		n.change.Rank = -1
	}
	why := n.why()
	a.log.Warn(why+"; stopping the workers for a new round, no restart is counted",
		a.changeAttrs(at, n.change)...)
	a.emit(at, Stopping{Stopped, "for a new round", why})
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

// logStays logs why the workers go on although something has happened.
func (a *Agent) logStays(ctx context.Context, at *attempt, n news) {
	switch n.ev {
	case decide.EvBarrierOverdue:
		a.log.Warn(
			"exit barrier: some nodes did not finish in time; the others need this host for their rendezvous or their workers' store, so it stays",
			"missing", strings.Join(a.peers(at).Missing(ctx), ", "), "elapsed", time.Since(at.status.since))
	case decide.EvDoneNodeGone:
		a.log.Info("a node of the round is gone, after its workers had succeeded; going on", a.changeAttrs(at, n.change)...)
	case decide.EvClosedWhenDone:
		a.log.Warn(
			"a node whose workers had succeeded has closed the rendezvous; the workers here continue, but no round can follow",
			a.changeAttrs(at, n.change)...)
	}
}

func (a *Agent) changeAttrs(at *attempt, c rendezvous.Change) []any {
	attrs := []any{"run_id", a.cfg.Rendezvous.RunID(), "round", at.round.Round}
	if c.Node != "" {
		attrs = append(attrs, "node", c.Node)
	}
	if c.Rank >= 0 {
		attrs = append(attrs, "group_rank", c.Rank)
	}
	return append(attrs, decisionAttr(at.status.verdict)...)
}
