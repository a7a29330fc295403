package launch

import (
	"fmt"
	"sync"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/job/accounts"
)

// A timekeeper says of an agent's events to which account the time of its workers goes.
type timekeeper struct {
	log *accounts.Log

	mu      sync.Mutex  // guards the rest
	starts  map[int]int // of attempts, by restart count
	began   time.Time   // when the workers of the attempt began to work
	killing bool        // the workers that hang are about to be killed
}

func newTimekeeper(log *accounts.Log) *timekeeper {
	return &timekeeper{log: log, starts: map[int]int{}}
}

// observe takes an event.
func (k *timekeeper) observe(e agent.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch w := e.What.(type) {
	case agent.Joining:
		k.mark(e.Time, accounts.Waiting)
	case agent.Joined:
		k.markUnless(w.Err, e.Time, accounts.Rendezvous)
	case agent.RanksAssigned:
		if w.Err == nil {
			k.begin(&e)
		}
	case agent.WorkersStarted:
		if !w.Live {
			k.work(e.Time, w.Err)
		}
	case agent.Reconfigured:
		k.work(e.Time, nil)
	case agent.Suspected:
		if !w.Since.IsZero() {
			k.mark(time.UnixMilli(max(w.Since.UnixMilli(), k.began.UnixMilli())), accounts.Hang)
		}
		k.mark(e.Time, accounts.Autopsy)
		k.killing = w.Kills
	case agent.EvidenceTaken:
		if k.killing {
			k.mark(e.Time, accounts.Stop)
		} else {
			k.mark(e.Time, accounts.Running)
		}
	case agent.Decided:
		k.decided(&e, &w)
	case agent.Resting, agent.Stopping, agent.JobPreempted:
		k.stop(e.Time)
	case agent.FailureExplained:
		k.log.Put(accounts.Mark{At: e.Time.UnixMilli(), Account: k.log.Now(), Cause: w.Report.Cause})
	case agent.BarrierEntered:
		k.mark(e.Time, accounts.Others)
	case agent.AttemptEnded:
		if k.log.Now() != accounts.Others {
			k.mark(e.Time, accounts.Restart)
		}
	case agent.Finished:
		if k.log.Now() == accounts.Others {
			for i, exit := range w.Exits {
				k.log.Put(accounts.Mark{At: exit.Time.UnixMilli(), Account: accounts.Others, LocalRank: &i})
			}
		}
		k.mark(e.Time, accounts.Agent)
	}
}

// decided takes in what follows of the workers' end, or of another host's.
func (k *timekeeper) decided(e *agent.Event, w *agent.Decided) {
	switch {
	case w.Seen == agent.Succeeded:
		k.mark(e.Time, accounts.Others)
	case w.Again || w.Seen == agent.Failed || w.Seen == agent.Unhealthy:
		at := e.Time
		if w.Since.After(k.began) && w.Since.Before(at) {
			at = w.Since
		}
		k.stop(at)
	}
}

// stop notes that the workers stop, unless that is known.
func (k *timekeeper) stop(at time.Time) {
	if now := k.log.Now(); now.Works() || now == accounts.Start || now == accounts.FirstStep {
		k.mark(at, accounts.Stop)
	}
}

// begin notes that an attempt begins.
func (k *timekeeper) begin(e *agent.Event) {
	name := fmt.Sprintf("attempt_%d", e.Restarts)
	if n := k.starts[e.Restarts]; n > 0 {
		name += fmt.Sprintf(".%d", n)
	}
	k.starts[e.Restarts]++
	k.log.Put(accounts.Mark{At: e.Time.UnixMilli(), Account: accounts.Start, Attempt: name})
}

// work notes that the workers work.
func (k *timekeeper) work(at time.Time, err error) {
	if err == nil {
		k.began = at
		k.mark(at, accounts.Running)
	}
}

func (k *timekeeper) markUnless(err error, at time.Time, account accounts.Account) {
	if err == nil {
		k.mark(at, account)
	}
}

func (k *timekeeper) mark(at time.Time, account accounts.Account) {
	k.log.Put(accounts.Mark{At: at.UnixMilli(), Account: account})
}
