package launch

import (
	"fmt"
	"strings"
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

// observe takes an event.
func (k *timekeeper) observe(e agent.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch w := e.What.(type) {
	case agent.Joining:
		k.mark(e.Time, accounts.Waiting)
	case agent.Joined:
		if w.Err == nil {
			k.mark(e.Time, accounts.Rendezvous)
		}
	case agent.RanksAssigned:
		if w.Err == nil {
			name := fmt.Sprintf("attempt_%d.%d", e.Restarts, k.starts[e.Restarts])
			k.starts[e.Restarts]++
			k.log.Put(accounts.Mark{At: e.Time.UnixMilli(), Account: accounts.Start, Attempt: strings.TrimSuffix(name, ".0")})
		}
	case agent.WorkersStarted:
		if !w.Live && w.Err == nil {
			k.work(e.Time)
		}
	case agent.Reconfigured:
		k.work(e.Time)
	case agent.Suspected:
		if !w.Since.IsZero() {
			k.mark(time.UnixMilli(max(w.Since.UnixMilli(), k.began.UnixMilli())), accounts.Hang)
		}
		k.mark(e.Time, accounts.Autopsy)
		k.killing = w.Kills
	case agent.EvidenceTaken:
		k.mark(e.Time, map[bool]accounts.Account{true: accounts.Stop, false: accounts.Running}[k.killing])
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

// work notes that the workers work.
func (k *timekeeper) work(at time.Time) {
	k.began = at
	k.mark(at, accounts.Running)
}

func (k *timekeeper) mark(at time.Time, account accounts.Account) {
	k.log.Put(accounts.Mark{At: at.UnixMilli(), Account: account})
}
