package postmortem

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/files/inotify"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/internal/wait/sleep"
)

const (
	// lookInterval is how often Follow looks for what is new; remoteInterval is the same on a file
	// system that asks another host.
	lookInterval   = 100 * time.Millisecond
	remoteInterval = 500 * time.Millisecond
	// lingerTime is how long output may come after the agent was killed: its workers
	// are then, too.
	lingerTime = time.Second
)

// FollowConfig says what Follow follows. All but Attempt is required.
type FollowConfig struct {
	Dir     string // of the run
	Attempt string // the first to follow
	Only    bool   // none after it
	Selection
	Lines int // of each stream of the first attempt; negative: all
	Printing
	// Note gets what else there is to say: the name of an attempt after the first before its first
	// line, and how the job has ended when all is written.
	Note   func(string)
	Logger *slog.Logger
}

// A follower follows a run.
type follower struct {
	cfg    FollowConfig
	print  *printer
	number number // of the attempt
	dir    string // the attempt's; "" before the first
	base   int    // the global rank of its local rank 0; -1: not known yet
	past   bool   // it is the one of whose past only some lines are wanted
	seen   map[string]bool
	feeds  []*feed
	failed map[string]bool
	alive  bool // its agent ran when it was asked last
}

// Follow writes the lines that the workers of a run have written, and those that they
// write from now on. When a new attempt begins it continues with that one. It returns when
// the job has ended, as far as its directory tells; when another attempt has begun after
// the only one to follow; when ctx ends, having written what there is; or when its Writer
// fails.
func Follow(ctx context.Context, cfg FollowConfig) error {
	f := &follower{cfg: cfg, print: newPrinter(cfg.Printing, true), failed: map[string]bool{}}
	f.number, _ = parseAttempt(cfg.Attempt)
	err := f.run(ctx)
	return cmp.Or(err, f.print.Close())
}

func (f *follower) run(ctx context.Context) error {
	interval := lookInterval
	if inotify.Remote(f.cfg.Dir) {
		interval = remoteInterval
	}
	for {
		over := f.ended(ctx) // before all is written that came until then
		last := ctx.Err() != nil || over != ""
		err := f.round()
		if err != nil || last {
			if err = cmp.Or(err, f.leave()); err == nil && over != "" {
				f.cfg.Note(over)
			}
			return err
		}
		_ = sleep.For(ctx, interval)
	}
}

// round writes what has come, of all attempts that have begun.
func (f *follower) round() error {
	for {
		if f.dir != "" {
			f.find()
			if err := f.copy(); err != nil || f.cfg.Only {
				return err
			}
		}
		next, ok := f.next()
		if !ok {
			return nil
		}
		if err := f.leave(); err != nil {
			return err
		}
		f.enter(next)
	}
}

// next returns the first attempt to follow, or the one after that which is followed.
func (f *follower) next() (next number, ok bool) {
	entries, _ := list(f.cfg.Dir)
	all := attempts(entries)
	i := slices.IndexFunc(all, func(n number) bool {
		order := n.compare(f.number)
		return order > 0 || order == 0 && f.dir == ""
	})
	if i < 0 {
		return next, false
	}
	return all[i], true
}

// enter goes over to an attempt.
func (f *follower) enter(n number) {
	f.past = f.dir == ""
	if f.print.begin(n) && !f.past {
		f.cfg.Note(n.String())
	}
	f.number, f.dir, f.base, f.seen = n, filepath.Join(f.cfg.Dir, n.String()), -1, map[string]bool{}
}

// leave ends an attempt: what is left of it is written.
func (f *follower) leave() error {
	if f.dir == "" {
		return nil
	}
	f.find()
	for _, feed := range f.feeds { // a system asks the host that has a file for its size when it is opened
		if file, _, err := safeopen.Open(feed.path); err == nil {
			file.Close()
		}
	}
	err := f.copy()
	err = cmp.Or(err, f.print.close(f.feeds))
	f.feeds = nil
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
	rd, a := &reader{budget: maxTotal}, &Attempt{Dir: f.dir}
	entries, _ := list(f.dir)
	rd.workers(a, entries)
	if len(a.Workers) == 0 {
		return
	}
	f.ranks(rd, a)
	lines := -1
	if f.past {
		lines = f.cfg.Lines
	}
	for _, s := range a.Streams(f.cfg.Selection) {
		if f.seen[s.Path] {
			continue
		}
		opened, err := f.print.open(&s, lines, f.number, f.number.String())
		if err != nil {
			f.complain(s.Path, err)
			continue
		}
		f.seen[s.Path] = true
		f.feeds = append(f.feeds, opened)
	}
	slices.SortStableFunc(f.feeds, func(x, y *feed) int { return x.rank - y.rank })
}

// ranks sets the workers' global ranks, as far as they are known.
func (f *follower) ranks(rd *reader, a *Attempt) {
	run, first := &Run{Dir: f.cfg.Dir}, &a.Workers[0]
	if f.base >= 0 {
		first.Rank = f.base + first.LocalRank
	} else {
		run.job()
		rd.report(run, a)
	}
	a.ranks(run)
	f.base = max(-1, first.Rank-first.LocalRank)
}

// ended says how the job has ended, or the one attempt that is followed; "" while it
// has not, or nothing tells.
func (f *follower) ended(ctx context.Context) string {
	if f.cfg.Only && f.dir != "" {
		if later, ok := f.next(); ok {
			return fmt.Sprintf("%s is over: %s has begun", f.number, later)
		}
	}
	file, err := agentOf(f.cfg.Dir)
	if err != nil {
		f.complain(filepath.Join(f.cfg.Dir, jobfile.Name), err)
	}
	if file == nil {
		return ""
	}
	if file.State == jobfile.Gone && f.alive {
		_ = sleep.For(ctx, lingerTime)
	}
	f.alive = file.State == jobfile.Runs
	return ending(file)
}
