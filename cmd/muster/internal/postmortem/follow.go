package postmortem

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/muster-run/muster/events"
)

const (
	// gap is how long a Follow lets output come together.
	gap = 2 * time.Millisecond
	// pollInterval is how often Follow looks where the system does not tell of changes,
	// such as those that other hosts make on a shared file system.
	pollInterval = 500 * time.Millisecond
)

// FollowConfig says what Follow follows.
type FollowConfig struct {
	Dir            string // of the run
	Attempt        string // the first to follow; "" is the newest
	Only           bool   // none after it
	Stdout, Stderr bool
	// Want selects workers. With GlobalRanks it is not asked of a worker before its
	// rank is known, where events.jsonl will tell it.
	Want        func(Worker) bool
	GlobalRanks bool
	Lines       int // of each stream of the first attempt; negative: all
	Printing
	// Begin is called before the first line of an attempt after the first.
	Begin func(attempt string)
	// End is called when the job has ended and all is written, with how that went.
	End    func(how string)
	Logger *slog.Logger // nil means slog.Default()
}

// A follower follows a run.
type follower struct {
	cfg   FollowConfig
	watch *dirWatcher
	print *printer

	number  number
	attempt *Attempt // nil before the first
	past    bool     // it is the one of whose past only some lines are wanted
	dirty   bool     // something may be new
	seen    map[string]bool
	feeds   []*feed
	failed  map[string]bool

	alive bool // its agent ran when it was asked last
}

// Follow writes the lines that the workers of a run have written, and those that they
// write from now on. When a new attempt begins it goes on with that one. It returns when
// the job has ended, as far as its directory tells; when another attempt has begun after
// the only one to follow; when ctx ends, having written what there is; or when its Writer
// fails. The goroutines that it starts have ended by then.
func Follow(ctx context.Context, cfg FollowConfig) error {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	f := &follower{cfg: cfg, watch: newDirWatcher(cfg.Dir, cfg.Logger), print: newPrinter(cfg.Printing, true),
		failed: map[string]bool{}}
	defer f.watch.close()
	err := f.run(ctx)
	if closed := f.print.Close(); err == nil {
		err = closed
	}
	return err
}

func (f *follower) run(ctx context.Context) error {
	cfg := &f.cfg
	f.watch.add(cfg.Dir)
	for {
		over := f.ended(ctx) // before all is written that came until then
		last := ctx.Err() != nil || over != ""
		err := f.round()
		if err != nil || last {
			if left := f.leave(); err == nil {
				err = left
			}
			if err == nil && over != "" && cfg.End != nil {
				cfg.End(over)
			}
			return err
		}
		f.watch.wait(ctx)
	}
}

// round writes what has come, of all attempts that have begun.
func (f *follower) round() error {
	dirty := f.dirty
	f.dirty = false
	for {
		if f.attempt != nil {
			if dirty {
				f.find()
			}
			if err := f.copy(); err != nil {
				return err
			}
		}
		if f.attempt != nil && (f.cfg.Only || !dirty) {
			return nil
		}
		next, ok := f.next()
		if !ok {
			return nil
		}
		if err := errors.Join(f.leave(), f.enter(next)); err != nil {
			return err
		}
		dirty = true
	}
}

// next returns the first attempt to follow, or the one after that which is followed.
func (f *follower) next() (name string, ok bool) {
	if f.attempt != nil {
		return f.choose(func(_ string, n, best number) bool { return n.compare(f.number) > 0 && n.compare(best) < 0 })
	}
	if f.cfg.Attempt != "" {
		return f.choose(func(name string, _, _ number) bool { return name == f.cfg.Attempt })
	}
	return f.choose(func(_ string, n, best number) bool { return best == none || n.compare(best) > 0 })
}

// none is after all numbers.
var none = number{restart: math.MaxInt, again: math.MaxInt}

// choose returns the last attempt, in the order of the directory, that is better than
// the best before it.
func (f *follower) choose(better func(name string, n, best number) bool) (name string, ok bool) {
	entries, err := list(f.cfg.Dir)
	if err != nil {
		return "", false
	}
	best := none
	for _, e := range entries {
		if n, isAttempt := parseAttempt(e.Name()); isAttempt && e.IsDir() && better(e.Name(), n, best) {
			name, best, ok = e.Name(), n, true
		}
	}
	return name, ok
}

// enter goes over to an attempt.
func (f *follower) enter(name string) error {
	f.number, _ = parseAttempt(name)
	f.past = f.attempt == nil
	f.print.begin(f.number, func() {
		if !f.past && f.cfg.Begin != nil {
			f.cfg.Begin(name)
		}
	})
	f.attempt = &Attempt{Name: name, Dir: filepath.Join(f.cfg.Dir, name), Restart: f.number.restart, Again: f.number.again}
	f.seen = map[string]bool{}
	f.watch.add(f.attempt.Dir)
	return nil
}

// leave ends an attempt: what is left of it is written.
func (f *follower) leave() error {
	if f.attempt == nil {
		return nil
	}
	f.find()
	f.refresh()
	err := f.copy()
	if closed := f.print.close(f.feeds); err == nil {
		err = closed
	}
	f.feeds = nil
	f.watch.removeBelow(f.attempt.Dir)
	return err
}

// copy writes what the streams have.
func (f *follower) copy() error {
	return f.print.drain(f.feeds, func(feed *feed, err error) { f.complain(feed.path, err) })
}

// complain says once that a file cannot be read.
func (f *follower) complain(path string, err error) {
	if !f.failed[path] {
		f.failed[path] = true
		f.cfg.Logger.Warn("a log cannot be followed", "file", path, "error", err)
	}
}

// find looks for workers and files that were not there before.
func (f *follower) find() {
	rd := &reader{budget: maxTotal}
	a := &Attempt{Dir: f.attempt.Dir, Restart: f.attempt.Restart, Again: f.attempt.Again}
	for again := true; again; {
		entries, err := list(a.Dir)
		if err != nil {
			return
		}
		a.Workers = nil
		rd.workers(a, entries)
		again = false
		for _, w := range a.Workers {
			again = f.watch.add(w.Dir) || again // files may have come before
		}
	}
	if !f.ranks(rd, a) {
		return
	}
	for _, s := range a.Streams(f.cfg.Stdout, f.cfg.Stderr, f.cfg.Want) {
		if !f.seen[s.Path] {
			f.open(s)
		}
	}
}

// open begins to follow a stream.
func (f *follower) open(s Stream) {
	lines := -1
	if f.past {
		lines = f.cfg.Lines
	}
	opened, err := f.print.open(&s, lines, f.number, f.attempt.Name)
	if err != nil {
		f.complain(s.Path, err)
		return
	}
	f.seen[s.Path] = true
	f.feeds = append(f.feeds, opened)
	slices.SortStableFunc(f.feeds, func(x, y *feed) int { return x.rank - y.rank })
}

// ranks sets the workers' global ranks. It returns false if they are needed and
// will be known later.
func (f *follower) ranks(rd *reader, a *Attempt) bool {
	if base, ok := f.base(rd, a); ok {
		for i := range a.Workers {
			a.Workers[i].Rank = base + a.Workers[i].LocalRank
		}
		return true
	}
	path := filepath.Join(f.cfg.Dir, events.FileName)
	if _, err := os.Lstat(path); err != nil || !f.cfg.GlobalRanks {
		return true
	}
	return len(a.Workers) == 0
}

// base is the global rank of local rank 0, where that is known.
func (f *follower) base(rd *reader, a *Attempt) (int, bool) {
	run := &Run{Dir: f.cfg.Dir}
	run.job()
	rd.report(run, a)
	told := rd.events(run, filepath.Join(f.cfg.Dir, events.FileName))[number{a.Restart, a.Again}]
	if told != nil {
		for local, w := range told.workers {
			if w.rank >= local {
				return w.rank - local, true
			}
		}
	}
	probe := Attempt{Report: a.Report, Failures: a.Failures, Workers: []Worker{{Rank: -1}}}
	probe.ranks(run)
	return probe.Workers[0].Rank, probe.Workers[0].Rank >= 0
}
