package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// How agents tell each other of failures, through the store of the round:
//
//  1. An agent that starts its workers sets agentPrefix and waits for failedKey (hear).
//  2. The first agent whose worker fails puts a record at failedKey, by compare-and-set
//     (put). The record decides for all nodes whether another round follows, and with which
//     count of restarts. Often the other workers of that host still run then
//     (announceEarly). An agent that hears of the record stops its own workers (follow,
//     fail, stopPreempted, continueWithout, giveUp).
//  3. Where no round follows, all agents set failuresPrefix. The agent of the record gathers
//     those and sets reportKey, and the others read it (gather.go). The last one that has
//     read it sets readKey, because the store may end with the agent of the record.
//
// Every wait has a bound: agents die, too.

// Keys of our own in the store of a round. Nothing waits for an agent of
// TorchElastic to set them.
const (
	// agentPrefix + group rank: the host's name. An agent that sets it knows the other keys.
	agentPrefix = "muster/agents/"
	// failedKey: the record of the node whose workers failed first.
	failedKey = "muster/failed"
	// donePrefix + group rank: set once the node's workers have succeeded and it
	// is counted at the exit barrier.
	donePrefix = "muster/done/"
	// excusedPrefix + group rank: counts those that would count a node at the exit barrier which is gone.
	excusedPrefix = "muster/excused/"
	// failuresPrefix + group rank: how the node's workers failed.
	failuresPrefix = "muster/failures/"
	// reportKey: the failures of all nodes, gathered by the one of the record.
	reportKey = "muster/report"
	// lastWordsKey: the end of stderr of the worker in the record. keepersKey: how many agents
	// have wanted to keep it.
	lastWordsKey = "muster/last_words"
	keepersKey   = lastWordsKey + "/keepers"
	// readKey: set once all have read reportKey, who count themselves at readKey/count.
	readKey = "muster/read"
)

// restartsKey is in the store of the job: how many restarts it has used.
const restartsKey = "restarts"

// record says whose failure ended a round, and what follows.
type record struct {
	Node     int    `json:"node"` // group rank
	Rank     int    `json:"rank"` // of the worker; -1 where there is none
	Host     string `json:"host"`
	Restarts int    `json:"restarts"` // the job's, after this
	Round    int    `json:"round"`    // that it ended; the rounds of a job with PyTorch's agents may share a store
	Final    bool   `json:"final"`    // there will be no further round
	Cause    string `json:"cause"`
	// Signal is set if the node did not fail: it received this signal, with which
	// the whole job shall stop. Time is when, by the clock of the job.
	Signal int `json:"signal,omitempty"`
	// Asked is set if no worker has failed: somebody wants new ones (Agent.Restart).
	Asked bool `json:"asked,omitempty"`
	// Live is set if the workers of the other nodes go on. At is the step before which they come
	// to rest; negative: at once. Fruitless is how many such changes without a loss have followed each
	// other with this one, if there is no other reason for it.
	Live      bool      `json:"live,omitempty"`
	At        int64     `json:"at,omitempty"`
	Fruitless int       `json:"futile,omitempty"`
	Time      time.Time `json:"time,omitzero"`
	// Decision is what the node's policy says; nil where it says nothing. A node whose
	// policy drains it leaves, and the others go on without counting a restart.
	Decision *policy.Decision `json:"decision,omitempty"`
	// Failures is a list of one, the host's first, as failure.Encode has it.
	Failures json.RawMessage `json:"failures,omitempty"`
}

func (r *record) news() news {
	switch {
	case r.Signal != 0:
		return news{ev: decide.EvPeerPreempted, record: r}
	case r.lostHost():
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

// isOf is negative if a record is of an earlier round than an attempt.
func (r *record) isOf(at *attempt) int { return cmp.Compare(r.Round, at.round.Round) }

// mostRestarts is the highest count of restarts that another host is believed: counting
// goes on from it.
const mostRestarts = math.MaxInt32

// Bounds of what other agents write of themselves, in characters.
const (
	maxHost = 255
	maxText = 1000 // of a record
)

// parseRecord reads what another agent wrote. Its texts end up in logs and pages.
func parseRecord(body []byte) (*record, error) {
	if len(body) > maxRecord {
		return nil, fmt.Errorf("%s holds %d bytes, more than %d", failedKey, len(body), maxRecord)
	}
	r := record{Node: -1, Rank: -1}
	if err := json.Unmarshal(body, &r); err != nil || r.Node < 0 || r.Restarts < 0 || r.Restarts > mostRestarts ||
		r.Signal < 0 || r.Signal > 64 || r.Decision != nil && !r.Decision.Valid() {
		return nil, fmt.Errorf("%s holds %.100q, want an agent's record of a failure", failedKey, body)
	}
	r.Host, r.Cause = text.Line(r.Host, maxHost), text.Line(r.Cause, maxText)
	if d := r.Decision; d != nil {
		d.Rule, d.Source, d.Why = text.Line(d.Rule, maxText), text.Line(d.Source, maxText), text.Line(d.Why, maxText)
	}
	return &r, nil
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
func (a *Agent) put(ctx context.Context, at *attempt, rec *record) *news {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.PeerTimeout)
	defer cancel()
	if !rec.Final {
		if _, err := raise(ctx, at.round.JobStore, restartsKey, rec.Restarts); err != nil {
			a.log.Warn("cannot count the restart for the whole job", "error", err)
		}
	}
	if at.alone() {
		return nil
	}
	rec.Round = at.round.Round
	text, err := json.Marshal(rec)
	if err != nil {
		a.log.Warn("cannot tell the other nodes about the failure", "error", err)
		return nil
	}
	found, err := at.round.Store.CompareAndSet(ctx, failedKey, nil, text)
	if first, bad := parseRecord(found); err == nil && bad == nil && first.isOf(at) < 0 {
		found, err = at.round.Store.CompareAndSet(ctx, failedKey, found, text)
	}
	at.status.unwritten.Store(err != nil)
	if err != nil {
		a.log.Warn("cannot tell the other nodes about the failure", "error", err)
		return nil
	}
	if string(found) == string(text) {
		a.sayLastWords(ctx, at, rec)
		return nil
	}
	first, err := parseRecord(found)
	if err == nil && rec.Signal != 0 && !first.Final {
		// There will be no such round. An agent that waits for it looks again once the job is closed.
		if _, err := at.round.Store.CompareAndSet(ctx, failedKey, found, text); err != nil {
			a.log.Warn("cannot tell the other nodes about the failure", "error", err)
		}
		return nil
	}
	if err != nil {
		a.log.Warn("cannot read another host's record of the failure", "error", err)
		return nil
	}
	other := first.news()
	if rec.Live && other.ev == decide.EvPeerLive {
		return nil // it has the others do the same
	}
	return &other
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
func (a *Agent) newRecord(at *attempt, failures []*failure.ProcessFailure, err error, final bool) *record {
	rec := &record{Node: at.round.Rank, Rank: -1, Host: a.cfg.Host, Restarts: a.restarts,
		Final: final, Decision: at.status.verdict}
	if !final && !rec.leaves() {
		rec.Restarts += 1 - at.paid()
	}
	if root := failure.NewReport(failure.ReportConfig{}, failures).Root(); root != nil {
		rec.Rank, rec.Cause = root.Rank, root.Cause
		rec.Failures, _ = failure.Encode([]*failure.ProcessFailure{root}, at.round.ClockOffset, rootLimit)
	} else if err != nil {
		rec.Cause = err.Error()
	}
	return rec
}

// hear waits for another node's record. It also tells the others that this agent
// knows the keys of muster.
func (a *Agent) hear(at *attempt) {
	s := at.round.Store
	err := s.Set(at.run.life, fmt.Sprint(agentPrefix, at.round.Rank), []byte(a.cfg.Host))
	var text []byte
	if err == nil {
		text, err = patientGet(at.run.life, s, failedKey)
	}
	if at.run.life.Err() != nil {
		return
	}
	var rec *record
	if err == nil {
		rec, err = parseRecord(text)
	}
	for err == nil && rec.isOf(at) < 0 && at.outlives(time.Second) { // of an earlier round, which this node has left
		if text, err = s.Get(at.run.life, failedKey); err == nil {
			rec, err = parseRecord(text)
		}
	}
	if at.run.life.Err() != nil {
		return
	}
	if err != nil {
		if at.outlives(a.cfg.PeerTimeout) { // else the loss of the rendezvous was news of its own
			a.log.Warn("cannot learn about failures on other hosts in this round", "round", at.round.Round, "error", err)
		}
		return
	}
	if rec.Node != at.round.Rank {
		at.send(rec.news())
		a.keepLastWords(at.run.life, at, rec)
	}
}

// patientGet waits for a key beyond the store's own time limit.
func patientGet(ctx context.Context, s store.Store, key string) ([]byte, error) {
	for {
		text, err := s.Get(ctx, key)
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrTimeout) {
			return text, err
		}
	}
}

// lookUp reads a key if it is there.
func lookUp(ctx context.Context, s store.Store, key string) ([]byte, error) {
	there, err := s.Check(ctx, key)
	if err != nil || !there {
		return nil, err
	}
	return s.Get(ctx, key)
}

// hostOf is the name of a node's host; "" while its agent has not set it.
func hostOf(ctx context.Context, at *attempt, groupRank int) (string, error) {
	name, err := lookUp(ctx, at.round.Store, fmt.Sprint(agentPrefix, groupRank))
	return text.Line(string(name), maxHost), err
}

// raise sets the number at key to n unless it is that much already, and returns it.
func raise(ctx context.Context, s store.Store, key string, n int) (have int, err error) {
	old := []byte{}
	for range 1000 {
		found, err := s.CompareAndSet(ctx, key, old, strconv.AppendInt(nil, int64(n), 10))
		if err != nil {
			return 0, err
		}
		if have, err = strconv.Atoi(string(found)); err != nil {
			return 0, fmt.Errorf("%s holds %.100q, want a number", key, found)
		} else if have >= n {
			return have, nil
		}
		old = found
	}
	return 0, fmt.Errorf("%s is changed all the time", key)
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
	n, err := raise(ctx, at.round.JobStore, restartsKey, a.restarts)
	if err != nil {
		a.log.Warn("cannot find out how many restarts the job has used", "error", err, "restart", a.restarts)
	} else if n <= mostRestarts {
		a.restarts = n
	}
}

// restart counts a restart for this host's own failure, and keeps a report of it. Live says that
// the workers of other hosts go on.
func (a *Agent) restart(at *attempt, rec *record, live bool) {
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
func (a *Agent) follow(ctx context.Context, at *attempt, rec *record) {
	a.carriedOutElsewhere(at, rec.Decision)
	if rec.leaves() {
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
func (a *Agent) continueWithout(ctx context.Context, at *attempt, rec *record) {
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
		if rec := findRecord(ctx, at); rec != nil && rec.Node != at.round.Rank {
			return rec.news()
		}
		if isDone(ctx, at, n.change.Rank) {
			n.ev = decide.EvDoneNodeGone
		}
		if a.live != nil {
			if over, err := at.round.Store.Check(ctx, liveOverKey); err == nil && over {
				a.live.end()
			}
		}
	}
	if a.policy != nil {
		n.host, _ = hostOf(ctx, at, n.change.Rank)
	}
	return n
}

// whyWaiting looks in the store for the reason why nodes wait: they may be nodes of this
// round that a failure has broken up, and the news of that failure may come later.
func (a *Agent) whyWaiting(ctx context.Context, at *attempt, n news) news {
	if rec := findRecord(ctx, at); rec != nil {
		return rec.news()
	}
	if a.policy != nil && n.change.Kind == rendezvous.NodeLost && n.change.Rank >= 0 {
		n.host, _ = hostOf(ctx, at, n.change.Rank)
	}
	return n
}

// whyClosed looks in the store for the reason why a node closed the rendezvous, and whether that
// has succeeded, if the round has begun.
func (a *Agent) whyClosed(ctx context.Context, at *attempt, n news, begun bool) news {
	if rec := findRecord(ctx, at); rec != nil {
		return rec.news()
	}
	n.ev = decide.EvClosed
	if !begun {
		return n
	}
	if arrived, err := at.round.Store.Add(ctx, barrierCount, 0); err == nil && arrived > 0 {
		n.ev = decide.EvClosedWhenDone
	}
	return n
}

// findRecord returns the record that ended the round, if there is one.
func findRecord(ctx context.Context, at *attempt) *record {
	text, err := lookUp(ctx, at.round.Store, failedKey)
	if err != nil || text == nil {
		return nil
	}
	rec, err := parseRecord(text)
	if err != nil || rec.isOf(at) < 0 {
		return nil
	}
	return rec
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
		rec := findRecord(look, last)
		cancel()
		switch {
		case rec == nil:
		case rec.Signal != 0:
			return a.stopPreempted(ctx, last, rec), nil
		case rec.lostHost():
			return a.giveUp(ctx, last, rec.news())
		case rec.Final:
			return a.fail(ctx, last, Failed, rec.news())
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
