package agent

import (
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
