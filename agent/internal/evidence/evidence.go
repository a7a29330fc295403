// Package evidence finds out what the workers of a job do when some of them hang, and which of them are why.
//
// A Collector has the evidence of one attempt. It notices that this host's workers make no progress (WatchProgress),
// examines them with package autopsy, and asks the agents of the other hosts for what theirs do, which their
// Collectors answer (Answer). Ranks that do something else than most are the culprits: the host that has them kills
// them first, so that they are the root cause, and the others wait for that.
//
// The package also finds what GPUs and the kernel have to say of a failure. It does not decide what follows from one.
package evidence

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/job/witness"
	"github.com/muster-run/muster/rendezvous"
)

// Config is what the Collectors of an agent share. Nobody changes it while there is one.
type Config struct {
	RunID, Host string
	Timeout     time.Duration     // bounds the collection of evidence; zero or less: none is collected
	HangTimeout time.Duration     // after which workers without progress count as hanging; negative: learned
	HangNotify  bool              // nobody is killed for a hang
	Caller      rendezvous.Caller // the agents of the other hosts
	Witness     *witness.Server   // asks workers for their flight recorders; nil where none can be asked
	Answers     chan struct{}     // closed once Witness can ask a worker
	Log         *slog.Logger

	Requests  func() int64                            // how many requests the timers of all workers have had
	Suspected func(who, what string, since time.Time) // is told of workers that hang
	// Taken is told of evidence that was collected. If another agent has found that workers hang, since is since when
	// those of this host make no progress, and blame that some will be killed for it.
	Taken    func(summary string, since time.Time, blame bool)
	patience patience  // of the one goroutine that watches progress
	unseen   sync.Once // logs that the workers' processes cannot be looked at
}

// Workers are those of an attempt, as far as evidence of them needs to know. Several goroutines may call the methods
// at a time once the workers run.
type Workers interface {
	// Round is theirs.
	Round() *rendezvous.Info
	Rank(localRank int) int
	// Processes are theirs, by local rank, and Working those of the workers that the job waits for.
	Processes() map[int]int
	Working() map[int]int
	Written(localRank int) int64 // bytes
	// World is the job's number of ranks.
	World() int
	// RunDir is where NCCL's flight recorders write. LogDir is where evidence of them is written; "" for nowhere.
	RunDir() string
	LogDir() string
	Kill()
}

// A Collector has the evidence of an attempt's workers. Its methods may be called at any time once they run. Of its
// locks only examining is taken under another, wholeJob or onDemand.
type Collector struct {
	cfg     *Config
	workers Workers

	mu     sync.Mutex     // guards the rest
	missed map[int]string // by local rank: the deadline for which muster killed the worker
	last   *Evidence      // what was collected last; nil before
	asked  map[int]said   // by local rank: what a worker said before it was stopped
	still  time.Time      // since when the workers make no progress; zero if nobody looks

	wholeJob  sync.Mutex      // held while evidence of all hosts is collected
	examining sync.Mutex      // guards taken, and is held while this host's workers are examined
	taken     *autopsy.Report // of this host's workers, for a failure
	onDemand  sync.Mutex      // held while they are examined for `muster dump` or a status page
}

// New returns the Collector of an attempt.
func New(cfg *Config, workers Workers) *Collector {
	return &Collector{cfg: cfg, workers: workers, missed: map[int]string{}, asked: map[int]said{}}
}

// Evidence is what is known of workers that hang.
type Evidence struct {
	Report *autopsy.Report
	File   string // of the text; empty if it was not written
	blame  bool   // it was collected because workers are to be killed
}

// isOf reports whether evidence was collected after a time.
func (e *Evidence) isOf(since time.Time) bool { return e != nil && !e.Report.Time.Before(since) }

// NoteDeadline notes that a worker is killed because it missed a deadline. The first one is the cause: others may be
// missed while the worker ends. So it is known when the worker has ended.
func (c *Collector) NoteDeadline(localRank int, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.missed[localRank]; !known {
		c.missed[localRank] = what
	}
}

// Deadline returns the deadline that a worker was killed for; "" for none.
func (c *Collector) Deadline(localRank int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.missed[localRank]
}

// Last returns what was collected last; nil if nothing was.
func (c *Collector) Last() *Evidence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Settled is Last once no agent asks all others any more: it says what it found before it kills a worker.
func (c *Collector) Settled() *Evidence {
	c.wholeJob.Lock()
	defer c.wholeJob.Unlock()
	return c.Last()
}

// JustNow is since when evidence of a failure that kills workers counts for another: workers that miss their deadlines
// together share it.
func (c *Collector) JustNow() time.Time { return time.Now().Add(-c.cfg.Timeout) }

// lacks reports whether there is no evidence since a time that would do, and since when it has to be. That of a hang
// which was only noted does not do where workers are to be killed: they may have continued since.
func (c *Collector) lacks(since time.Time, blame bool) (time.Time, bool) {
	switch e := c.Last(); {
	case !e.isOf(since):
		return since, true
	case blame && !e.blame:
		return time.Now(), true
	}
	return since, false
}

// Collect collects evidence of the workers of this host, with pids by local rank; with blame, some of them will be
// killed for reason. It takes no longer than Config.Timeout and ends with ctx.
func (c *Collector) Collect(ctx context.Context, reason string, pids map[int]int, blame bool) {
	if c.alone() { // several workers may miss their deadlines together
		c.wholeJob.Lock()
		defer c.wholeJob.Unlock()
	}
	if since, lacks := c.lacks(c.JustNow(), blame); lacks && c.cfg.Timeout > 0 {
		r := c.examineForFailure(ctx, since, reason, pids)
		r.Judge()
		c.keep(r, blame)
	}
}

// Examine returns what some workers of this host do, and writes it to their logs; nil where no evidence is collected.
func (c *Collector) Examine(ctx context.Context, reason string, pids map[int]int) *autopsy.Report {
	if c.cfg.Timeout <= 0 || len(pids) == 0 {
		return nil
	}
	c.examining.Lock()
	r := c.examine(ctx, reason, pids)
	c.examining.Unlock()
	c.write(r, false)
	return r
}

// examineForFailure examines the workers of this host, or returns what was taken for a failure since a time.
func (c *Collector) examineForFailure(ctx context.Context, since time.Time, reason string,
	pids map[int]int) *autopsy.Report {
	c.examining.Lock()
	defer c.examining.Unlock()
	if c.taken == nil || c.taken.Time.Before(since) {
		c.taken = c.examine(ctx, reason, pids)
	}
	r := *c.taken // not what others judge and pack
	r.Workers = slices.Clone(r.Workers)
	return &r
}

// examine examines workers of this host. It leaves some of Config.Timeout for the way to other hosts. The caller holds
// examining: two cannot look at a worker at a time.
func (c *Collector) examine(ctx context.Context, reason string, pids map[int]int) *autopsy.Report {
	targets := make([]autopsy.Target, 0, len(pids))
	var ask func(context.Context, int) ([]byte, error)
	if c.cfg.Witness != nil {
		ask = c.cfg.Witness.Everything
	}
	for _, i := range slices.Sorted(maps.Keys(pids)) {
		targets = append(targets, autopsy.Target{Rank: c.workers.Rank(i), LocalRank: i, PID: pids[i], Witness: ask})
	}
	return autopsy.Take(ctx, reason, targets, autopsy.Config{Timeout: c.cfg.Timeout * 4 / 5,
		World: c.workers.World(), Behind: c.workers.Round().ClockOffset, Logger: c.cfg.Log})
}

// keep makes evidence that of the attempt, and writes it.
func (c *Collector) keep(r *autopsy.Report, blame bool) {
	e := &Evidence{r, c.write(r, blame), blame}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = e
}

// write writes evidence to the workers' logs, and logs what it shows and where it is.
func (c *Collector) write(r *autopsy.Report, blame bool) (file string) {
	if dir := c.workers.LogDir(); dir != "" {
		var err error
		if file, _, err = r.WriteDir(dir); err != nil {
			c.cfg.Log.Warn("cannot write the evidence of workers that hang", "error", err)
		}
	}
	attrs := []any{"evidence", file, "seconds", fmt.Sprintf("%.2f", r.Seconds)}
	if !strings.HasPrefix(r.Reason, "hang: ") { // the line before has that
		attrs = append(attrs, "reason", r.Reason)
	}
	c.cfg.Log.Warn("what the workers did: "+r.Summary(), attrs...)
	since := time.Time{}
	if c.mu.Lock(); foundOn(r.Reason) != "" {
		since = c.still
	}
	c.mu.Unlock()
	c.cfg.Taken(r.Summary(), since, blame)
	return file
}

// culprits are the ranks that make the others wait: those that do something else than most; none where nothing tells
// the ranks apart. A worker that has ended is none: had it failed, the agent would not wait for the others.
func (e *Evidence) culprits() (ranks []int) {
	if e == nil {
		return nil
	}
	if named := e.Report.Named(); named != nil {
		return named
	}
	for _, g := range e.Report.Groups() {
		if g.Odd && !g.Ended() {
			ranks = append(ranks, g.Ranks...)
		}
	}
	return ranks
}

// named reports whether the workers' flight recorders say who makes the others wait.
func (e *Evidence) named() bool { return e != nil && e.Report.Named() != nil }

// suspects reports whether a rank may be a culprit.
func (e *Evidence) suspects(rank int) bool {
	culprits := e.culprits()
	return len(culprits) == 0 || slices.Contains(culprits, rank)
}

// OnlyWaited reports whether a worker has missed its deadline only because it waited for another one of this host,
// which the evidence shows to be the culprit.
func (c *Collector) OnlyWaited(localRank int) bool {
	e := c.Last()
	if e == nil || e.suspects(c.workers.Rank(localRank)) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.missed {
		if e.suspects(c.workers.Rank(i)) {
			return true
		}
	}
	return false
}

// KillCulprits kills the culprits of this host, and with them all its other workers, so that they are the root cause in
// the record of the failure. It returns false if there are none.
func (c *Collector) KillCulprits() (killed bool) {
	e, why := c.Last(), "it differs from the ranks that wait"
	if e.named() {
		why = e.Report.Collectives.Text
	}
	for i := range c.workers.Working() {
		if slices.Contains(e.culprits(), c.workers.Rank(i)) && !c.cfg.HangNotify {
			c.NoteDeadline(i, failure.HangPrefix+why+foundOn(e.Report.Reason))
			killed = true
		}
	}
	if killed {
		c.workers.Kill()
	}
	return killed
}

// foundOn is the host that begins the reason for which another agent has asked.
func foundOn(reason string) string {
	if host, _, ok := strings.Cut(reason, ": hang: "); ok && host != "" {
		return "; " + host + " has found that the workers hang"
	}
	return ""
}
