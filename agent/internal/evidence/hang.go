package evidence

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/procfs"
)

// A worker that uses less than this share of one CPU does nothing that counts as
// progress: background threads (PyTorch's heartbeats, Python's own) wake up a few
// times a second, also in a worker that hangs.
const idleShare = 0.02

// A vital is the signs of life of a worker, summed up since its start.
type vital struct {
	cpu     time.Duration
	written int64
	timers  int64 // requests that the timers of all workers have had
	// works is how far its process groups are, "" if that is not known; waits: an operation of them is
	// under way.
	works string
	waits bool
}

// WatchProgress finds out when this host's workers make no progress any more: none of them
// writes or uses a timer, and either one at least, which may wait for the others, does nothing, or
// operations of torch.distributed are under way and none begins or ends, while those that wait may spin. After
// Config.HangTimeout it kills them, so that the group fails, or only keeps evidence (hung). It returns when the
// workers have ended, or life. A host of culprits that announces their failure sets failedKey.
func (c *Collector) WatchProgress(life context.Context, ended <-chan struct{}, failedKey string) {
	timeout, learn := c.cfg.HangTimeout, c.cfg.HangTimeout < 0
	if learn {
		c.cfg.patience.last = 0 // a hang that ended the attempt before is none that the job has survived
		timeout = c.cfg.patience.timeout(0)
	}
	ticker := time.NewTicker(lookEvery(timeout))
	defer ticker.Stop()
	w := newWatched(timeout, c.vitals(), time.Now())
	told := false
	for {
		select {
		case <-ticker.C:
		case <-ended:
			return
		case <-life.Done():
			return
		}
		idle := w.look(c.vitals(), time.Now())
		c.mu.Lock()
		c.still = w.seen.Add(-idle)
		c.mu.Unlock()
		if learn {
			timeout = c.cfg.patience.timeout(idle)
			w.timeout = timeout
		}
		if idle >= timeout && !told {
			c.hung(life, failedKey, idle, w)
		}
		told = idle >= timeout
	}
}

// A patience learns how long workers may make no progress from the times without any that have ended.
type patience struct {
	longest, last time.Duration
}

const (
	leastPatience = 10 * time.Minute // NCCL's own time limit: a job that waits longer has had to raise that
	margin        = 3
)

// timeout takes for how long there has been no progress, and returns for how long there may be none.
func (p *patience) timeout(idle time.Duration) time.Duration {
	if idle < p.last {
		p.longest = max(p.longest, p.last)
	}
	p.last = idle
	return max(leastPatience, margin*p.longest)
}

// lookEvery returns how often to look at the workers: a tenth of the timeout, and for a short one a part of it without
// a rest, so that a look comes as the timeout ends. The kernel tells CPU time in ticks of 10 ms: within less than
// leastLook, one tick of an idle worker is more than idleShare.
func lookEvery(timeout time.Duration) time.Duration {
	return max(min(timeout/10, 10*time.Second), timeout/max(timeout/leastLook, 1), 50*time.Millisecond)
}

const leastLook = 650 * time.Millisecond

// watched is what is known of the workers of one attempt.
type watched struct {
	timeout time.Duration
	last    map[int]vital
	seen    time.Time         // when they were looked at
	idle    time.Duration     // for how long they had made no progress then
	said    time.Time         // when one of them had written, or used a timer
	used    map[int]time.Time // when each had used its CPU
	moved   time.Time         // when an operation of any had begun or ended, or none was under way
	stuck   bool              // idle goes by moved: some may use their CPUs
	halves  [2]sight          // one look in each of the last two halves of the timeout, the older first
}

// A sight is what one look at the workers found.
type sight struct {
	at time.Time
	v  map[int]vital
}

func newWatched(timeout time.Duration, v map[int]vital, now time.Time) *watched {
	w := &watched{timeout: timeout, last: v, seen: now, said: now, moved: now, used: map[int]time.Time{}}
	w.halves = [2]sight{{now, v}, {now, v}}
	for i := range v {
		w.used[i] = now
	}
	return w
}

// look takes the workers as they are now and returns for how long they have made no progress. A look that comes
// late says that the agent was paused, and perhaps the workers with it, unless it was busy with a hang.
func (w *watched) look(v map[int]vital, now time.Time) time.Duration {
	same := v != nil && len(v) == len(w.last) && (now.Sub(w.seen) <= 3*lookEvery(w.timeout) || w.idle >= w.timeout)
	for i := range v {
		_, known := w.last[i]
		same = same && known
	}
	if !same {
		*w = *newWatched(w.timeout, v, now)
		return 0
	}
	waits := false
	for i, n := range v {
		b := w.last[i]
		if n.works == "" { // it has not answered
			n.works, n.waits = b.works, b.waits
			v[i] = n
		}
		if n.written != b.written || n.timers != b.timers || n.works != b.works {
			w.said = now
		}
		waits = waits || n.waits
		if (n.cpu - b.cpu).Seconds() > idleShare*now.Sub(w.seen).Seconds() {
			w.used[i] = now
		}
	}
	w.last, w.seen = v, now
	if now.Sub(w.halves[1].at) >= w.timeout/2-lookEvery(w.timeout)/2 { // a look comes a little early or late
		w.halves = [2]sight{w.halves[1], {now, v}}
	}
	if !waits {
		w.moved = now
	}
	since := w.moved
	for _, at := range w.used {
		if at.Before(since) {
			since = at
		}
	}
	w.stuck = since.Equal(w.moved)
	if w.said.After(since) {
		since = w.said
	}
	w.idle = now.Sub(since)
	if early := w.timeout - w.idle; early > 0 && early < lookEvery(w.timeout)/10 {
		w.idle = w.timeout // a look that comes early is not one too early
	}
	return w.idle
}

// busy returns the local ranks of the workers that use their CPU while the others wait: as the
// timeout ends, and on average. On a busy machine a worker that waits, too, needs more than
// idleShare in some second.
func (w *watched) busy() (ranks []int) {
	lately, from := max(w.timeout/4, lookEvery(w.timeout)), w.halves[0]
	for _, i := range slices.Sorted(maps.Keys(w.used)) {
		average := (w.last[i].cpu - from.v[i].cpu).Seconds() / w.seen.Sub(from.at).Seconds()
		if w.seen.Sub(w.used[i]) < lately && average > idleShare {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// vitals looks at the workers, by local rank; nil if that is not possible.
func (c *Collector) vitals() map[int]vital {
	pids := c.workers.Working()
	uses, err := procfs.Uses(slices.Collect(maps.Values(pids)))
	if err != nil {
		c.cfg.unseen.Do(func() {
			c.cfg.Log.Warn("cannot tell whether the workers hang: their processes cannot be looked at", "error", err)
		})
		return nil
	}
	v, timers := make(map[int]vital, len(pids)), c.cfg.Requests()
	for i, pid := range pids {
		if use, there := uses[pid]; there && !use.Ended {
			v[i] = vital{cpu: use.CPU, written: c.workers.Written(i), timers: timers}
		}
	}
	c.works(pids, v)
	return v
}

// hung acts on workers that make no progress, some of which may be busy while the others wait.
func (c *Collector) hung(life context.Context, failedKey string, idle time.Duration, w *watched) {
	busy, shown := w.busy(), idle.Round(100*time.Millisecond)
	what := fmt.Sprintf("no output, no CPU time and no timer activity of this host's workers for %v", shown)
	switch {
	case w.stuck:
		what = fmt.Sprintf("no output of this host's workers for %v, in which collectives were under way and none "+
			"began or ended", shown)
	case len(busy) > 0:
		what = fmt.Sprintf(
			"no output and no timer activity of this host's workers for %v, in which only local rank %s used CPU time",
			shown, text.Ranges(busy, ","))
	}
	c.cfg.Log.Error("the workers hang: "+what, "run_id", c.cfg.RunID, "kill", !c.cfg.HangNotify)
	c.cfg.Suspected("the workers hang", what, time.Now().Add(-idle))
	since := time.Now().Add(-min(idle, c.cfg.Timeout)) // before that, they did something else
	c.CollectOfJob(context.WithoutCancel(life), since, "hang: "+what, c.workers.Working(), !c.cfg.HangNotify)
	e := c.Last()
	if c.cfg.HangNotify || c.WaitForCulprit(life, failedKey) || (!c.alone() || e.named()) && c.KillCulprits() {
		return
	}
	prefix := failure.HangPrefix
	if e != nil && e.Report.Unknown() != "" {
		prefix = failure.UnknownPrefix + e.Report.Unknown() + "; "
	}
	for i := range c.workers.Working() {
		c.NoteDeadline(i, prefix+what)
	}
	c.workers.Kill()
}
