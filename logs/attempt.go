package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/sleep"
)

// tailSize is how much of a worker's stderr is kept for a report, in bytes.
const tailSize = 64 << 10

// A Worker is one process of the group, as the prefix of its lines names it.
type Worker struct {
	LocalRank, Rank int
	Role            string
	// Prefix, if it is not empty, is put before each line that tee copies, instead of
	// what Config.LinePrefixTemplate makes.
	Prefix string
}

// A Sink is where one worker's output goes.
type Sink struct {
	// Stdout and Stderr are what the worker gets as descriptors 1 and 2. They
	// belong to the Attempt and are valid until Started, or Finish (KeepOpen). They may be the same.
	Stdout, Stderr *os.File
	// StdoutPath and StderrPath name the files, "" for a stream without one.
	StdoutPath, StderrPath string
	// ErrorFile is the path for TORCHELASTIC_ERROR_FILE, "" without files.
	ErrorFile string
}

// Joined reports whether stdout and stderr take one way, as they do where both go
// to the same place.
func (s Sink) Joined() bool { return s.Stderr != nil && s.Stdout == s.Stderr }

// paths are those of both files.
func (s Sink) paths() [2]string { return [2]string{s.StdoutPath, s.StderrPath} }

// Stats says what an Attempt has lost.
type Stats struct {
	// LostBytes of workers' output did not reach the console or a filtered
	// file: it was closed, its disk was full, or it was stuck until the
	// context of Finish ended. Their log files are not affected.
	LostBytes int64
	// DiskFull: the log directory's file system had no room left at the end,
	// so that workers' own writes to their files may have failed.
	DiskFull bool
}

// An Output is what a worker has written so far, without an unredirected stdout that does
// not go where stderr goes.
type Output struct {
	Bytes int64
	Last  time.Time // when it wrote last; zero if it has not
}

// An Attempt is one start of the worker group. The caller starts the workers with it, as
// process.Config.Logs, and calls Finish when they have ended. Output and StderrTail may be called
// at any time, the rest from one goroutine.
// Source: LogsDest in multiprocessing/api.py.
type Attempt struct {
	// It is open until Started and runs until Finish. While it runs, each relay and tail has a
	// goroutine of its own, which Finish waits for. Nothing here changes after Started, so that
	// Output and StderrTail need no lock.

	run     *Run
	dir     string
	workers map[int]*worker // by local rank
	relays  []*relay        // the workers'
	hold    time.Duration   // how long a begun line waits for its end in these
	tails   []*tail         // of what tee copies, and of filtered lines
	filters []*console      // the files of filtered lines
	placed  map[string]bool // paths that Config.Layout has named
	owned   []*os.File      // the workers' ends, closed by Started
	disk    disk
	kept    bool // owned are closed by Finish instead

	over      context.Context    // ends when the workers have ended
	end       context.CancelFunc // ends it
	started   bool
	finished  bool
	stats     Stats // what Finish returns
	err       error
	watcher   *watcher // of tails
	terminals terminals
}

// disk is what became of an Attempt's files.
type disk struct {
	bare   bool // they could not be made
	noRoom bool // since the disk was full
	writes bool // there are some
}

// terminals are those that workers have in place of the agent's.
type terminals struct {
	ends  []*os.File     // the agent's, of ptys
	winch chan os.Signal // nil without terminals
}

// A worker is one process of an Attempt and the way of its output.
type worker struct {
	Worker
	sink  Sink
	relay *relay // of a stderr, and what is joined to it, that does not go to a file; nil: there is none
	out   *relay // of such a stdout that is apart; nil: there is none
}

// Attempt makes the directory of one start of the group, attempt_<restart>, or
// attempt_<restart>.1 and so on when there is one already (after a change of
// membership the group starts anew with the same restart count), and opens what
// the workers write to. On success the caller owes Finish, and Started: process.Start calls that.
//
// Where files cannot be made, as on a full disk, the job continues without: what tee was to copy
// goes to the console as it is, and what was to be redirected nowhere.
func (r *Run) Attempt(restart int, workers []Worker) (*Attempt, error) {
	a := newAttempt(r)
	err := a.open(restart, workers)
	if _, file := errors.AsType[*fs.PathError](err); file && !errors.Is(err, syscall.EMFILE) &&
		!errors.Is(err, syscall.ENFILE) && !errors.Is(err, fs.ErrExist) { // the last is the layout's or an attacker's doing
		r.log.Error("cannot create log files: the output of this attempt is not kept, and redirected output is lost", "error",
			err)
		a.discard()
		a = newAttempt(r)
		a.disk.bare, a.disk.noRoom = true, errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
		err = a.open(restart, workers)
	}
	if err != nil {
		a.discard()
		if errors.Is(err, syscall.EMFILE) {
			err = fmt.Errorf("%w; raise the limit (ulimit -n)", err)
		}
		return nil, fmt.Errorf("logs of attempt %d: %w", restart, err)
	}
	return a, nil
}

func newAttempt(r *Run) *Attempt {
	a := &Attempt{run: r, workers: make(map[int]*worker), placed: make(map[string]bool)}
	a.over, a.end = context.WithCancel(context.Background())
	return a
}

func (a *Attempt) open(restart int, workers []Worker) error {
	if err := a.makeDir(restart); err != nil {
		return err
	}
	if len(workers) > 1 {
		a.hold = relayHold
	}
	for _, w := range workers {
		if a.workers[w.LocalRank] != nil || w.LocalRank < 0 {
			return fmt.Errorf("local rank %d is negative or there twice", w.LocalRank)
		}
		opened := &worker{Worker: w}
		a.workers[w.LocalRank] = opened
		if err := a.openSink(opened); err != nil {
			return err
		}
	}
	return a.openTails()
}

func (a *Attempt) makeDir(restart int) error {
	if a.run.dir == "" || a.disk.bare {
		return nil
	}
	name := "attempt_" + strconv.Itoa(restart)
	err := fs.ErrExist
	for i := 0; errors.Is(err, fs.ErrExist); i++ {
		dir := name
		if i > 0 {
			dir += "." + strconv.Itoa(i)
		}
		a.dir = filepath.Join(a.run.dir, dir)
		if err = a.run.root.Load().Mkdir(dir, 0o777); errors.Is(err, fs.ErrNotExist) && a.run.remake() == nil {
			err = a.run.root.Load().Mkdir(dir, 0o777)
		}
		err = named(a.dir, err)
	}
	return err
}

// openSink opens what one worker writes to.
func (a *Attempt) openSink(w *worker) (err error) {
	r, s := a.run, &w.sink
	if a.dir != "" {
		files := r.cfg.Layout(a.dir, w.Worker)
		toFile := r.cfg.Redirects.For(w.LocalRank) | r.cfg.Tee.For(w.LocalRank)
		if toFile&StdOut == 0 {
			files.Stdout = ""
		}
		if toFile&StdErr == 0 {
			files.Stderr = ""
		}
		s.ErrorFile, s.StdoutPath, s.StderrPath = files.ErrorFile, files.Stdout, files.Stderr
		if err := cmp.Or(a.place(&s.ErrorFile), a.place(&s.StdoutPath), a.place(&s.StderrPath)); err != nil {
			return err
		}
	}
	switch {
	case s.StdoutPath != "":
		s.Stdout, err = a.own(a.create(s.StdoutPath))
	case a.shows(w.Worker, StdOut):
		// Where both are apart, the end of stdout may be all that says why a worker failed.
		if s.Stdout = r.outFile; r.stdout != r.stderr && !r.stdout.terminal {
			s.Stdout, w.out, err = a.openRelay(w, r.stdout)
		}
	default:
		s.Stdout, err = a.own(os.OpenFile(os.DevNull, os.O_WRONLY, 0))
	}
	if err != nil {
		return err
	}
	if s.StderrPath != "" {
		s.Stderr, err = a.own(a.create(s.StderrPath))
		return err
	}
	var to *console // of a worker that is filtered out: none
	if a.shows(w.Worker, StdErr) {
		to = r.stderr
	}
	if s.Stderr, w.relay, err = a.openRelay(w, to); err != nil {
		return err
	}
	// Where stdout and stderr are one terminal, pipe or file, as with 2>&1, a print between two
	// updates of a progress bar has to stay there.
	if s.Stdout == r.outFile && w.relay != nil && r.stdout == r.stderr {
		s.Stdout = s.Stderr
	}
	return nil
}

// place makes the path of a file that Config.Layout has named absolute, and makes its directory.
// No two streams have one file.
func (a *Attempt) place(path *string) error {
	if *path == "" {
		return nil
	}
	if !filepath.IsAbs(*path) {
		*path = filepath.Join(a.dir, *path)
	}
	if a.placed[*path] {
		return fmt.Errorf("the layout has %s twice", *path)
	}
	a.placed[*path] = true
	dir := filepath.Dir(*path)
	if rel, ok := a.run.below(dir); ok {
		return named(dir, a.run.root.Load().MkdirAll(rel, 0o777))
	}
	return os.MkdirAll(dir, 0o777)
}

// shows reports whether a stream without a file goes to the console.
func (a *Attempt) shows(w Worker, s Std) bool {
	if a.disk.bare && a.run.cfg.Redirects.For(w.LocalRank)&s != 0 && a.run.cfg.Tee.For(w.LocalRank)&s == 0 {
		return false
	}
	return a.run.shows(w)
}

// appendNew is how a file of a new attempt is made: nobody can have put a file or a
// link there. Appending keeps a log in order when several processes open it, and without
// a hole after one of them has truncated it.
const appendNew = os.O_WRONLY | os.O_CREATE | os.O_EXCL | os.O_APPEND

// create makes a log file. What a layout names elsewhere may be there already, or be a
// link.
func (a *Attempt) create(path string) (*os.File, error) {
	a.disk.writes = true
	if rel, ok := a.run.below(path); ok {
		f, err := a.run.root.Load().OpenFile(rel, appendNew, 0o666)
		return f, named(path, err)
	}
	return os.OpenFile(path, appendNew&^os.O_EXCL|os.O_TRUNC, 0o666)
}

// own makes Started close f.
func (a *Attempt) own(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	a.owned = append(a.owned, f)
	return f, nil
}

// openRelay makes a way to the console, or nowhere, that keeps the end of what goes along it, and returns the worker's
// end.
func (a *Attempt) openRelay(w *worker, to *console) (end *os.File, r *relay, err error) {
	var agent *os.File
	if to != nil && to.terminal {
		if agent, end, err = relayTerminal(a.run.errFile); err != nil {
			// That the worker sees a terminal matters more than its last lines.
			a.run.log.Debug("stderr is not kept for the report", "local_rank", w.LocalRank, "error", err)
			return a.run.errFile, nil, nil
		}
		a.terminals.ends = append(a.terminals.ends, agent)
	} else if agent, end, err = relayPipe(); err != nil {
		return nil, nil, err
	}
	r = newRelay(agent, to, a.hold)
	a.relays, a.owned = append(a.relays, r), append(a.owned, end)
	return end, r, nil
}

// openTails prepares what follows the workers' files.
func (a *Attempt) openTails() error {
	if a.dir == "" {
		return nil
	}
	cfg := &a.run.cfg
	consoles := [...]*console{a.run.stdout, a.run.stderr}
	filters := [...][]string{cfg.DuplicateStdoutFilters, cfg.DuplicateStderrFilters}
	for i, filtered := range []string{"filtered_stdout.log", "filtered_stderr.log"} {
		all := tailConfig{files: make(map[int]string), prefixes: make(map[int]string), open: a.run.open, log: a.run.log}
		tee := all
		tee.files, tee.to = make(map[int]string), consoles[i]
		for rank, w := range a.workers {
			path := w.sink.paths()[i]
			if path == "" || !a.run.shows(w.Worker) {
				continue
			}
			all.prefixes[rank], all.files[rank] = a.prefix(w.Worker), path
			if cfg.Tee.For(rank)&(StdOut<<i) != 0 {
				tee.files[rank] = path
			}
		}
		if cfg.Collapse {
			tee.collapse, tee.collapsedPrefix = collapseDelay, a.expand
		}
		if len(tee.files) > 0 {
			a.tails = append(a.tails, newTail(tee))
		}
		if len(filters[i]) > 0 {
			f, err := a.create(filepath.Join(a.dir, filtered))
			if err != nil {
				return err
			}
			all.containing, all.to = filters[i], &console{w: f, file: f}
			a.filters = append(a.filters, all.to)
			a.tails = append(a.tails, newTail(all))
		}
	}
	return nil
}

func (a *Attempt) prefix(w Worker) string {
	if w.Prefix != "" {
		return w.Prefix
	}
	return a.expand([]int{w.LocalRank})
}

// expand makes the prefix of a line that these workers have written.
func (a *Attempt) expand(localRanks []int) string {
	var ranks []int
	var roles []string
	for _, r := range localRanks {
		w := a.workers[r]
		ranks = append(ranks, w.Rank)
		if !slices.Contains(roles, w.Role) {
			roles = append(roles, w.Role)
		}
	}
	slices.Sort(ranks)
	return expand(a.run.cfg.LinePrefixTemplate, map[string]string{
		"role_name": strings.Join(roles, ","), "hostname": a.run.hostname,
		"local_rank": text.Ranges(localRanks, ","), "rank": text.Ranges(ranks, ","),
	})
}

// discard closes what an Attempt that will not start has opened.
func (a *Attempt) discard() {
	a.end()
	_ = a.closeOwned()
	for _, r := range a.relays {
		r.f.Close()
	}
	for _, c := range a.filters {
		c.close()
	}
}

func (a *Attempt) closeOwned() error {
	var errs []error
	for _, f := range a.owned {
		errs = append(errs, f.Close())
	}
	a.owned = nil
	return errors.Join(errs...)
}

// Dir returns the attempt's directory, an absolute path, or "" when there are
// no files.
func (a *Attempt) Dir() string { return a.dir }

// Sink returns where a worker's output goes; it is zero for a local rank that
// the Attempt does not have.
func (a *Attempt) Sink(localRank int) Sink { return a.worker(localRank).sink }

// worker is that of a local rank, or an empty one.
func (a *Attempt) worker(localRank int) *worker { return cmp.Or(a.workers[localRank], &worker{}) }

// KeepOpen makes the Sinks valid until Finish, for workers that replace others. It is called
// before Started.
func (a *Attempt) KeepOpen() { a.kept = true }

// Started says that all workers have been started, or that none will be: it
// closes the Attempt's own copies of their descriptors and begins to follow
// their output. A second call does nothing.
func (a *Attempt) Started() error {
	if a.started || a.finished {
		return nil
	}
	a.started = true
	var err error
	if !a.kept {
		err = a.closeOwned()
	}
	for _, r := range a.relays {
		go r.run()
	}
	if len(a.terminals.ends) > 0 {
		a.terminals.winch = make(chan os.Signal, 1)
		signal.Notify(a.terminals.winch, syscall.SIGWINCH)
		go func() { // until finish closes winch, without waiting: to set the size of a closed terminal is only an error
			for range a.terminals.winch {
				copyWindowSize(a.run.errFile, a.terminals.ends)
			}
		}()
	}
	if len(a.tails) > 0 {
		a.watcher = newWatcher(a.run.log)
		for _, t := range a.tails {
			t.over, t.watcher = a.over, a.watcher
			go t.run()
		}
	}
	return err
}

// StderrTail returns the last bytes, at most 64 KiB, of what a worker has
// written to its stderr, wherever it went; nil where that cannot be read. Where
// both go to one place, its stdout is among it.
func (a *Attempt) StderrTail(localRank int) []byte {
	w := a.worker(localRank)
	return a.endOf(w.sink.StderrPath, w.relay)
}

// StdoutTail is StderrTail of a stdout that goes elsewhere and not to a terminal; else nil.
func (a *Attempt) StdoutTail(localRank int) []byte {
	w := a.worker(localRank)
	return a.endOf(w.sink.StdoutPath, w.out)
}

// endOf reads the end of what a worker has written to a file, or to a relay.
func (a *Attempt) endOf(path string, r *relay) []byte {
	if r != nil {
		return r.tail()
	} else if path == "" {
		return nil
	}
	f, fi, err := a.run.open(path) // the worker may have put something else there
	if err != nil {
		a.run.log.Debug("cannot read the end of what a worker has written", "path", path, "error", err)
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, fi.Size()-tailSize), tailSize))
	return b
}

// Output returns what a worker has written.
func (a *Attempt) Output(localRank int) (out Output) {
	w := a.worker(localRank)
	if w.relay != nil {
		out = w.relay.output()
	}
	for _, path := range w.sink.paths() {
		if fi, err := os.Stat(path); err == nil && fi.Size() > 0 {
			out.Bytes += fi.Size()
			if fi.ModTime().After(out.Last) {
				out.Last = fi.ModTime()
			}
		}
	}
	return out
}

// Finish is called when the workers have ended; a second call returns what the first did. It brings everything
// that was written so far to the console and the filtered files, and closes what
// the Attempt holds. When ctx ends first, because the console is stuck, what is
// left is counted as lost. Errors say why output was lost; the workers' log files
// are not affected, unless they speak of a full disk.
func (a *Attempt) Finish(ctx context.Context) (Stats, error) {
	if !a.finished {
		a.finished = true
		a.stats, a.err = a.finish(ctx)
	}
	return a.stats, a.err
}

func (a *Attempt) finish(ctx context.Context) (Stats, error) {
	if !a.started {
		a.discard()
		return Stats{}, nil
	}
	a.end()
	for _, r := range a.relays {
		r.finish()
	}
	var stats Stats
	errs := []error{a.closeOwned()}
	for _, r := range a.relays {
		if err := sleep.Until(ctx, r.done); err != nil { // the console is stuck
			r.abandoned.Store(true)
			errs = append(errs, fmt.Errorf("stderr not relayed in time: %w", err))
		}
		stats.LostBytes += r.lost.Load()
	}
	for _, t := range a.tails {
		errs = append(errs, t.wait(ctx))
		stats.LostBytes += t.lost.Load()
	}
	for _, c := range a.filters {
		if err := c.failure(); err != nil {
			errs = append(errs, fmt.Errorf("filtered lines: %w", err))
		}
		c.close()
	}
	if stats.LostBytes > 0 {
		errs = append(errs, a.run.stdout.failure(), a.run.stderr.failure())
	}
	if a.terminals.winch != nil {
		signal.Stop(a.terminals.winch)
		close(a.terminals.winch)
	}
	if a.watcher != nil {
		a.watcher.close()
	}
	if a.disk.noRoom || a.disk.writes && diskFull(a.dir) {
		stats.DiskFull = true
		errs = append(errs, fmt.Errorf("no room is left in %s: the workers' own files may lack output", a.run.dir))
	}
	return stats, errors.Join(errs...)
}
