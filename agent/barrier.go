package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/job/decide"
)

// enterBarrier begins to wait for the other nodes' workers to succeed too.
func (a *Agent) enterBarrier(at *attempt) {
	at.status.since = time.Now()
	at.setAlarm(a.cfg.ExitBarrierTimeout)
	at.run.wg.Go(func() {
		n := news{ev: decide.EvBarrierPassed}
		if err := a.peers(at).PassBarrier(at.run.life); err != nil {
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
			"missing", strings.Join(a.peers(at).Missing(ctx), ", "), "elapsed", elapsed)
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
