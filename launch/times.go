package launch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/slow"
)

// A timekeeper says of an agent's events to which account the time of its workers goes.
type timekeeper struct {
	log     *accounts.Log
	workers func() []agent.Worker                            // nil without; set before the agent runs
	courses func(context.Context) (map[int]slow.Course, int) // the agent's; set with workers

	mu      sync.Mutex               // guards the rest
	starts  map[int]int              // of attempts, by restart count
	began   time.Time                // when the workers of the attempt began to work
	killing bool                     // the workers that hang are about to be killed
	stopped time.Time                // when work ended by a failure; zero while there is none
	known   map[int]accounts.Account // of workers whose recorders tell how far they are, by local rank; nil until they work
	slow    *slow.Finding            // the rank that the others wait for, nil if there is none,
	base    int                      // the rank of the first worker here,
	waiting time.Time                // and since when it is not yet written how long they wait
}

// slowEvery is how often it is written how long the workers have waited for a slow rank.
const slowEvery = time.Minute

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
			k.known, k.stopped = nil, time.Time{}
			k.log.Put(accounts.Mark{At: e.Time.UnixMilli(), Account: accounts.Start, Attempt: strings.TrimSuffix(name, ".0")})
		}
	case agent.WorkersStarted:
		if !w.Live && w.Err == nil {
			k.work(e.Time)
		}
	case agent.Reconfigured:
		k.work(e.Time)
	case agent.Suspected:
		k.suspect(e.Time, w.Since, w.Kills)
	case agent.EvidenceTaken:
		if !w.Since.IsZero() && k.busy() {
			k.suspect(e.Time, w.Since, w.Kills)
		}
		k.examined(e.Time)
	case agent.Decided:
		k.decided(&e, &w)
	case agent.JobPreempted: // the workers may keep what they have done
		if k.busy() {
			k.mark(e.Time, accounts.Stop)
		}
	case agent.Resting, agent.Stopping:
		k.stop(e.Time)
	case agent.FailureExplained:
		k.log.Put(accounts.Mark{At: e.Time.UnixMilli(), Account: k.log.Now(), Cause: w.Report.Cause})
	case agent.BarrierEntered:
		k.mark(e.Time, accounts.Others)
	case agent.AttemptEnded:
		k.price()
		if k.log.Now() != accounts.Others {
			k.mark(e.Time, accounts.Restart)
		}
	case agent.Finished:
		if k.log.Now() == accounts.Others {
			for i, exit := range w.Exits {
				k.markOne(exit.Time.UnixMilli(), accounts.Others, i)
			}
		}
		k.mark(e.Time, accounts.Agent)
	}
}

// suspect notes that workers hang, since a time if that is known, or have missed a deadline.
func (k *timekeeper) suspect(at, since time.Time, kills bool) {
	if k.lose(at, nil); !since.IsZero() {
		k.mark(time.UnixMilli(max(since.UnixMilli(), k.began.UnixMilli())), accounts.Hang)
	}
	k.mark(at, accounts.Autopsy)
	k.killing = kills
}

// examined notes that evidence was taken: of workers that hang, or that do not end, or since another host asks.
func (k *timekeeper) examined(at time.Time) {
	switch {
	case k.log.Now() != accounts.Autopsy:
	case k.killing:
		k.mark(at, accounts.Stop)
	default:
		k.mark(at, accounts.Running)
		for _, i := range slices.Sorted(maps.Keys(k.known)) {
			k.markOne(at.UnixMilli(), k.known[i], i)
		}
	}
}

// decided takes in what follows of the workers' end, or of another host's.
func (k *timekeeper) decided(e *agent.Event, w *agent.Decided) {
	switch {
	case w.Seen == agent.Succeeded:
		k.hear()
		k.waited(e.Time)
		k.mark(e.Time, accounts.Others)
	case w.Again || w.Seen == agent.Failed || w.Seen == agent.Unhealthy:
		at := e.Time
		if w.Since.After(k.began) && w.Since.Before(at) {
			at = w.Since
		}
		k.stop(at)
	}
}

// stop notes that the workers stop because of a failure, unless that is known.
func (k *timekeeper) stop(at time.Time) {
	if k.busy() {
		k.waited(at)
		k.lose(at, nil)
		k.mark(at, accounts.Stop)
		k.stopped = at
	}
}

// hear takes in what workers that have ended have said of their course.
func (k *timekeeper) hear() (last map[int]slow.Course) {
	over, cancel := context.WithCancel(context.Background())
	if cancel(); k.courses != nil && k.known != nil { // those that run are not asked
		last, _ = k.courses(over)
	}
	maps.DeleteFunc(last, func(_ int, c slow.Course) bool { return c.Entered == 0 && c.Stepped == 0 })
	for _, i := range slices.Sorted(maps.Keys(last)) {
		k.enter(i, last[i])
	}
	return last
}

// price notes what workers have lost that have ended by a failure, as far as they have said that.
func (k *timekeeper) price() {
	if k.stopped.IsZero() {
		return
	}
	if last := k.hear(); len(last) > 0 {
		k.lose(k.stopped, last)
		for _, w := range k.workers() {
			k.markOne(k.stopped.UnixMilli(), accounts.Stop, w.LocalRank)
		}
	}
}

// lose notes that what workers have done is lost: since the step that they told last, or else since the end of the last
// one by their course or, as no step ends for one alone, another's.
func (k *timekeeper) lose(at time.Time, courses map[int]slow.Course) {
	if k.workers == nil {
		return
	}
	latest := int64(0)
	for _, c := range courses {
		latest = max(latest, c.Stepped)
	}
	for _, w := range k.workers() {
		since := time.Unix(0, cmp.Or(courses[w.LocalRank].Stepped, latest))
		if h := w.Heartbeat; h != nil && h.Step >= 0 && h.Time.After(k.began) {
			since = h.Time
		}
		if since.After(k.began) && since.Before(at) {
			k.markOne(since.UnixMilli(), accounts.Lost, w.LocalRank)
		}
	}
}

// busy reports whether the workers start or run.
func (k *timekeeper) busy() bool {
	now := k.log.Now()
	return now.Works() || now == accounts.Start || now == accounts.FirstStep
}

// course takes in what workers tell of their course, and which rank is slow; base is the rank of the first of them.
func (k *timekeeper) course(courses map[int]slow.Course, base int, f *slow.Finding) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil || !k.busy() {
		return
	}
	for _, i := range slices.Sorted(maps.Keys(courses)) {
		k.enter(i, courses[i])
	}
	if now := time.Now(); k.slow == nil || f == nil || now.Sub(k.waiting) >= slowEvery {
		k.waited(now)
		k.waiting = now
	}
	k.slow, k.base = f, base
}

// enter notes when a worker came to its first collective, and had steps, unless that is known.
func (k *timekeeper) enter(localRank int, c slow.Course) {
	began := k.began.UnixMilli()
	if k.known[localRank] == "" && c.Entered > 0 {
		k.markOne(began, accounts.Start, localRank)
		k.markOne(max(began, c.Entered/1e6), accounts.FirstStep, localRank)
		k.known[localRank] = accounts.FirstStep
	}
	if k.known[localRank] == accounts.FirstStep && c.Stepping > 0 {
		k.markOne(max(began, c.Stepping/1e6), accounts.Steps, localRank)
		k.known[localRank] = accounts.Steps
	}
}

// waited notes for how long the workers have waited for the slow rank until a time.
func (k *timekeeper) waited(until time.Time) {
	f := k.slow
	if f == nil || !until.After(k.waiting) {
		return
	}
	share := min(max(0, float64(f.Wait)/float64(max(1, f.Step))), 1)
	part := time.Duration(float64(until.Sub(k.waiting)) * share)
	for _, i := range slices.Sorted(maps.Keys(k.known)) {
		if k.known[i] == accounts.Steps && k.base+i != f.Rank {
			k.log.Put(accounts.Mark{At: k.waiting.UnixMilli(), Account: accounts.Slow, LocalRank: &i, Cause: f.Who()})
			k.markOne(k.waiting.Add(part).UnixMilli(), accounts.Steps, i)
		}
	}
	k.slow = nil
}

// work notes that the workers work.
func (k *timekeeper) work(at time.Time) {
	k.began, k.slow, k.known = at, nil, map[int]accounts.Account{}
	k.mark(at, accounts.Running)
}

func (k *timekeeper) mark(at time.Time, account accounts.Account) {
	k.log.Put(accounts.Mark{At: at.UnixMilli(), Account: account})
}

func (k *timekeeper) markOne(ms int64, account accounts.Account, localRank int) {
	k.log.Put(accounts.Mark{At: ms, Account: account, LocalRank: &localRank})
}
