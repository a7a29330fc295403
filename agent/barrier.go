package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/store"
)

// Keys of the exit barrier, as store.Barrier has them.
// Source: store_util.barrier in elastic/utils/store.py.
const (
	barrierCount = exitBarrierKey + "/num_members"
	barrierLast  = exitBarrierKey + "/last_member"
)

// enterBarrier begins to wait for the other nodes' workers to succeed too.
func (a *Agent) enterBarrier(at *attempt) {
	at.status.since = time.Now()
	at.setAlarm(a.cfg.ExitBarrierTimeout)
	at.run.wg.Go(func() {
		n := news{ev: decide.EvBarrierPassed}
		if err := passBarrier(at.run.life, at.round.Store, at.round.Rank, at.round.WorldSize); err != nil {
			n = news{ev: decide.EvBarrierBroken, err: err}
		}
		at.send(n)
	})
}

// overdue is the news that the exit barrier's timeout is over.
func (a *Agent) overdue(at *attempt) news {
	at.setAlarm(0)
	if !at.round.Serves || at.last() {
		return news{ev: decide.EvBarrierTimedOut}
	}
	at.status.overdue = true
	return news{ev: decide.EvBarrierOverdue}
}

// last reports whether all other nodes of the round are gone.
func (at *attempt) last() bool { return len(at.status.gone) == at.round.WorldSize-1 }

// passBarrier meets the agents of all n nodes, ours and torch's, and waits for them. A node
// counts itself before it says that it is done, so a node that is done and then lost is not
// waited for.
func passBarrier(ctx context.Context, s store.Store, groupRank, n int) error {
	arrived, err := s.Add(ctx, barrierCount, 1)
	if err != nil {
		return err
	}
	if arrived >= int64(n) {
		return s.Set(ctx, barrierLast, []byte("1"))
	}
	if err := s.Set(ctx, fmt.Sprint(donePrefix, groupRank), []byte("1")); err != nil {
		return err
	}
	for {
		err := s.Wait(ctx, barrierLast)
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrTimeout) {
			return err
		}
	}
}

// excuse counts a node that is gone at the barrier, unless it or somebody else has done so.
func excuse(ctx context.Context, s store.Store, groupRank, n int) error {
	if nth, err := s.Add(ctx, fmt.Sprint(excusedPrefix, groupRank), 1); err != nil || nth > 1 {
		return err
	}
	if done, err := s.Check(ctx, fmt.Sprint(donePrefix, groupRank)); err != nil || done {
		return err
	}
	arrived, err := s.Add(ctx, barrierCount, 1)
	if err == nil && arrived >= int64(n) {
		err = s.Set(ctx, barrierLast, []byte("1"))
	}
	return err
}

// isDone reports whether the workers of a node had succeeded. A torch agent does not say so, and
// sends no keep-alives at the barrier. It may be there if more agents are counted there than
// have said that they are done.
func isDone(ctx context.Context, at *attempt, groupRank int) bool {
	s := at.round.Store
	if done, err := s.Check(ctx, fmt.Sprint(donePrefix, groupRank)); err != nil || done {
		return done
	}
	if ours, err := s.Check(ctx, fmt.Sprint(agentPrefix, groupRank)); err != nil || ours {
		return false
	}
	arrived, err := s.Add(ctx, barrierCount, 0)
	for i := 0; i < at.round.WorldSize && arrived > 0 && err == nil; i++ {
		var done bool
		if done, err = s.Check(ctx, fmt.Sprint(donePrefix, i)); done {
			arrived--
		}
	}
	return err == nil && arrived > 0
}

// finish is the result of this host's workers, which have succeeded. It is not a failure that the
// others cannot be waited for.
func (a *Agent) finish(ctx context.Context, at *attempt, n news) *Result {
	elapsed := time.Since(at.status.since)
	r := a.succeeded(at)
	if n.ev == decide.EvNodeGone || n.ev == decide.EvEvicted {
		n.ev, n.err = decide.EvBarrierBroken, errors.New(n.why())
	}
	r.Left = n.ev == decide.EvBarrierTimedOut || n.ev == decide.EvBarrierBroken || n.ev == decide.EvDisconnected
	if n.ev == decide.EvBarrierPassed || n.ev == decide.EvSucceeded {
		a.concludeSuccess()
	}
	switch n.ev {
	case decide.EvBarrierTimedOut:
		a.log.Error("exit barrier: some nodes did not finish in time; this host leaves the job to them",
			"missing", strings.Join(a.missing(ctx, at), ", "), "elapsed", elapsed)
	case decide.EvBarrierBroken:
		a.log.Error("exit barrier: cannot wait for the other nodes; this host leaves the job to them",
			"error", n.err, "elapsed", elapsed)
	case decide.EvDisconnected:
		a.log.Error("exit barrier: lost the connection to the rendezvous; this host leaves the job to the others",
			"error", n.change.Err, "elapsed", elapsed)
	case decide.EvClosed, decide.EvClosedWhenDone:
		a.log.Info("the job has ended; the workers of this host had succeeded", "elapsed", elapsed)
	}
	return r
}

// missing names the nodes that have not reached the exit barrier, as far as they
// say.
func (a *Agent) missing(ctx context.Context, at *attempt) []string {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.PeerTimeout)
	defer cancel()
	ranks, more := lacking(ctx, at.round.Store, donePrefix, at.round.WorldSize)
	var names []string
	for _, rank := range ranks {
		if rank != at.round.Rank {
			names = append(names, nodeName(ctx, at, rank))
		}
	}
	if more {
		names = append(names, "and others")
	}
	return names
}

// nodeName is what is known of a node: "host2 (node 1)".
func nodeName(ctx context.Context, at *attempt, groupRank int) string {
	host, _ := hostOf(ctx, at, groupRank)
	if host == "" {
		return fmt.Sprintf("node %d", groupRank)
	}
	return fmt.Sprintf("%s (node %d)", host, groupRank)
}
