package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/text"
)

// TailSize is how much of a worker's stderr is kept for a report, in bytes.
const TailSize = 64 << 10

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
	// belong to the Attempt and are valid until Started. They may be the same.
	Stdout, Stderr *os.File
	// StdoutPath and StderrPath name the files, "" for a stream without one.
	StdoutPath, StderrPath string
	// ErrorFile is the path for TORCHELASTIC_ERROR_FILE, "" without files.
	ErrorFile string
}

// Joined reports whether stdout and stderr take one way, as they do where both go
// to the same place.
func (s Sink) Joined() bool { return s.Stderr != nil && s.Stdout == s.Stderr }

// Stats counts what passed through an Attempt.
type Stats struct {
	// Bytes and Lines were copied from files to the console, prefixes and
	// added newlines not counted.
	Bytes, Lines int64
	// RelayedBytes of unredirected stderr passed through to the console.
	RelayedBytes int64
	// FilteredLines went to the filtered files.
	FilteredLines int64
	// LostBytes of workers' output did not reach the console or a filtered
	// file: it was closed, its disk was full, or it was stuck until the
	// context of Finish ended. Their log files are not affected.
	LostBytes int64
	// DiskFull: the log directory's file system had no room left at the end,
	// so that workers' own writes to their files may have failed.
	DiskFull bool
}

// An Output is what a worker has written so far, as far as it goes to a file or
// through the agent: an unredirected stdout does neither, unless it goes where
// stderr goes.
type Output struct {
	Bytes int64
	Last  time.Time // when it wrote last; zero if it has not
}

// An Attempt is one start of the worker group. Output and StderrTail may be called
// at any time, the rest from one goroutine.
type Attempt struct {
	run     *Run
	dir     string
	size    int // how many workers there are
	workers map[int]Worker
	sinks   map[int]*Sink
	owned   []*os.File // the workers' ends, closed by Started

	relays    map[int]*relay
	terminals []*os.File // the agent's ends of ptys
	winch     chan os.Signal
	watcher   *watcher
	tails     []*Tail
	filters   []*Tail
	rotated   []*rotated
	placed    map[string]bool // paths that Config.Layout has named
	noRoom    bool            // the disk was full: no files
	started   bool
}

// Attempt makes the directory of one start of the group, attempt_<restart>, or
// attempt_<restart>.1 and so on when there is one already (after a change of
// membership the group starts anew with the same restart count), and opens what
// the workers write to. On success the caller owes Started and Finish.
//
// Where the disk is full the job goes on without files: what tee was to copy
// goes to the console as it is, and what was to be redirected nowhere.
func (r *Run) Attempt(restart int, workers []Worker) (*Attempt, error) {
	a := newAttempt(r)
	err := a.open(restart, workers)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		r.log.Error("no room for log files: output of this attempt is not kept, what would be redirected is lost", "error", err)
		a.discard()
		a = newAttempt(r)
		a.noRoom = true
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
	return &Attempt{run: r, workers: make(map[int]Worker), sinks: make(map[int]*Sink), relays: make(map[int]*relay), placed: make(map[string]bool)}
}

func (a *Attempt) open(restart int, workers []Worker) error {
	if err := a.makeDir(restart); err != nil {
		return err
	}
	a.size = len(workers)
	for _, w := range workers {
		if _, twice := a.workers[w.LocalRank]; twice || w.LocalRank < 0 {
			return fmt.Errorf("local rank %d is negative or there twice", w.LocalRank)
		}
		a.workers[w.LocalRank] = w
		if err := a.openSink(w.LocalRank); err != nil {
			return err
		}
	}
	if err := a.openTails(); err != nil {
		return err
	}
	a.openRotated()
	return nil
}

func (a *Attempt) makeDir(restart int) error {
	if a.run.dir == "" || a.noRoom {
		return nil
	}
	base := filepath.Join(a.run.dir, "attempt_"+strconv.Itoa(restart))
	for i, dir := 1, base; ; i++ {
		err := named(dir, a.run.root.Mkdir(filepath.Base(dir), 0o777))
		if err == nil {
			a.dir = dir
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		dir = base + "." + strconv.Itoa(i)
	}
}

// openSink opens what one worker writes to.
func (a *Attempt) openSink(localRank int) (err error) {
	r := a.run
	s := new(Sink)
	a.sinks[localRank] = s
	var toFile Std
	if a.dir != "" {
		files := r.cfg.Layout(a.dir, a.workers[localRank])
		if s.ErrorFile, err = a.place(files.ErrorFile); err != nil {
			return err
		}
		toFile = r.cfg.Redirects.For(localRank) | r.cfg.Tee.For(localRank)
		if toFile&StdOut != 0 {
			if s.StdoutPath, err = a.place(files.Stdout); err != nil {
				return err
			}
		}
		if toFile&StdErr != 0 {
			if s.StderrPath, err = a.place(files.Stderr); err != nil {
				return err
			}
		}
	}
	switch {
	case s.StdoutPath != "":
		s.Stdout, err = a.own(a.create(s.StdoutPath))
	case a.shows(localRank, StdOut):
		s.Stdout = r.outFile
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
	if s.Stderr, err = a.relay(localRank); err != nil {
		return err
	}
	if s.Stdout == r.outFile && a.relays[localRank] != nil && r.joined() {
		s.Stdout = s.Stderr
	}
	return nil
}

// place makes the directory of a file that Config.Layout has named. No two streams have
// one file.
func (a *Attempt) place(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(a.dir, path)
	}
	if a.placed[path] {
		return "", fmt.Errorf("the layout has %s twice", path)
	}
	a.placed[path] = true
	dir := filepath.Dir(path)
	if rel, ok := a.run.below(dir); ok {
		return path, named(dir, a.run.root.MkdirAll(rel, 0o777))
	}
	return path, os.MkdirAll(dir, 0o777)
}

// shows reports whether a stream without a file goes to the console.
func (a *Attempt) shows(localRank int, s Std) bool {
	if a.noRoom && a.run.cfg.Redirects.For(localRank)&s != 0 && a.run.cfg.Tee.For(localRank)&s == 0 {
		return false
	}
	return a.run.shows(localRank)
}

// appendNew is how a file of a new attempt is made: nobody can have put a file or a
// link there. Appending keeps a log in order when several processes open it, and without
// a hole after one of them has truncated it.
const appendNew = os.O_WRONLY | os.O_CREATE | os.O_EXCL | os.O_APPEND

// create makes a log file. What a layout names elsewhere may be there already, or be a
// link.
func (a *Attempt) create(path string) (*os.File, error) {
	if rel, ok := a.run.below(path); ok {
		f, err := a.run.root.OpenFile(rel, appendNew, 0o666)
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

// relay makes a way for stderr that keeps its end. A worker that is filtered out
// has one too, which leads nowhere else.
func (a *Attempt) relay(localRank int) (*os.File, error) {
	var to *console
	if a.shows(localRank, StdErr) {
		to = a.run.stderr
		if to.terminal {
			agent, worker, err := relayTerminal(a.run.errFile)
			if err == nil {
				a.terminals = append(a.terminals, agent)
				a.relays[localRank] = newRelay(agent, to, a.hold())
				return a.own(worker, nil)
			}
			// That the worker sees a terminal matters more than its last lines.
			a.run.log.Debug("stderr is not kept for the report", "local_rank", localRank, "error", err)
			return a.run.errFile, nil
		}
	}
	agent, worker, err := relayPipe()
	if err != nil {
		return nil, err
	}
	a.relays[localRank] = newRelay(agent, to, a.hold())
	return a.own(worker, nil)
}

// hold is how long a begun line waits for its end.
func (a *Attempt) hold() time.Duration {
	if a.size > 1 {
		return relayHold
	}
	return 0
}

// openTails prepares what follows the workers' files.
func (a *Attempt) openTails() error {
	if a.dir == "" {
		return nil
	}
	cfg := &a.run.cfg
	for _, s := range []struct {
		std     Std
		name    string
		console *console
		filters []string
		path    func(*Sink) string
	}{
		{StdOut, "filtered_stdout.log", a.run.stdout, cfg.DuplicateStdoutFilters, func(s *Sink) string { return s.StdoutPath }},
		{StdErr, "filtered_stderr.log", a.run.stderr, cfg.DuplicateStderrFilters, func(s *Sink) string { return s.StderrPath }},
	} {
		tee := TailConfig{Files: make(map[int]string), Prefixes: make(map[int]string), Logger: a.run.log}
		if cfg.Collapse {
			tee.Collapse, tee.CollapsedPrefix = CollapseDelay, a.collapsedPrefix
		}
		filter := TailConfig{Files: make(map[int]string), Prefixes: tee.Prefixes, Containing: s.filters, Logger: a.run.log}
		for rank, sink := range a.sinks {
			path := s.path(sink)
			if path == "" || !a.run.shows(rank) {
				continue
			}
			tee.Prefixes[rank] = a.prefix(rank)
			filter.Files[rank] = path
			if cfg.Tee.For(rank)&s.std != 0 {
				tee.Files[rank] = path
			}
		}
		if len(tee.Files) > 0 {
			a.tails = append(a.tails, a.run.newTail(tee, s.console))
		}
		if len(s.filters) > 0 {
			f, err := a.create(filepath.Join(a.dir, s.name))
			if err != nil {
				return err
			}
			a.filters = append(a.filters, a.run.newTail(filter, &console{w: f, file: f}))
		}
	}
	return nil
}

// openRotated prepares the rotation of the workers' files.
func (a *Attempt) openRotated() {
	if a.run.rotator == nil || a.dir == "" {
		return
	}
	for _, s := range a.sinks {
		for path, file := range map[string]*os.File{s.StdoutPath: s.Stdout, s.StderrPath: s.Stderr} {
			if path == "" {
				continue
			}
			f := a.run.rotator.open(path, file)
			if f == nil {
				continue
			}
			for _, t := range slices.Concat(a.tails, a.filters) {
				for _, x := range t.files {
					if x.path == path {
						f.tails = append(f.tails, x)
					}
				}
			}
			a.rotated = append(a.rotated, f)
		}
	}
}

func (a *Attempt) prefix(localRank int) string {
	w := a.workers[localRank]
	if w.Prefix != "" {
		return w.Prefix
	}
	return expand(a.run.cfg.LinePrefixTemplate, map[string]string{
		"role_name":  w.Role,
		"local_rank": strconv.Itoa(w.LocalRank),
		"rank":       strconv.Itoa(w.Rank),
		"hostname":   a.run.hostname,
	})
}

// collapsedPrefix is the prefix of a line that several workers have written.
func (a *Attempt) collapsedPrefix(localRanks []int) string {
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
		"role_name":  strings.Join(roles, ","),
		"local_rank": text.Ranges(localRanks, ","),
		"rank":       text.Ranges(ranks, ","),
		"hostname":   a.run.hostname,
	})
}

// discard closes what an Attempt that will not start has opened.
func (a *Attempt) discard() {
	_ = a.closeOwned()
	for _, r := range a.relays {
		r.f.Close()
	}
	for _, t := range a.filters {
		t.to.close()
	}
	for _, f := range a.rotated {
		f.file.Close()
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
func (a *Attempt) Sink(localRank int) Sink {
	if s := a.sinks[localRank]; s != nil {
		return *s
	}
	return Sink{}
}

// Started says that all workers have been started, or that none will be: it
// closes the Attempt's own copies of their descriptors and begins to follow
// their output. It is called once.
func (a *Attempt) Started() error {
	a.started = true
	err := a.closeOwned()
	for _, r := range a.relays {
		r.start()
	}
	if len(a.terminals) > 0 {
		a.winch = make(chan os.Signal, 1)
		signal.Notify(a.winch, syscall.SIGWINCH)
		go func() {
			for range a.winch {
				copyWindowSize(a.run.errFile, a.terminals)
			}
		}()
	}
	if len(a.rotated) > 0 {
		a.run.rotator.add(a.rotated)
	}
	if len(a.tails)+len(a.filters) > 0 {
		a.watcher = newWatcher(a.run.log)
		for _, t := range slices.Concat(a.tails, a.filters) {
			t.watcher = a.watcher
			t.Start()
		}
	}
	return err
}

// StderrTail returns the last bytes, at most TailSize, of what a worker has
// written to its stderr, wherever it went; nil where that cannot be read. Where
// both go to one place, its stdout is among it.
func (a *Attempt) StderrTail(localRank int) []byte {
	if r := a.relays[localRank]; r != nil {
		return r.tail()
	}
	s := a.sinks[localRank]
	if s == nil || s.StderrPath == "" {
		return nil
	}
	b, err := a.run.readTail(s.StderrPath)
	if err != nil {
		a.run.log.Debug("cannot read the end of stderr", "local_rank", localRank, "error", err)
	}
	return b
}

// Output returns what a worker has written.
func (a *Attempt) Output(localRank int) Output {
	var out Output
	add := func(o Output) {
		out.Bytes += o.Bytes
		if o.Last.After(out.Last) {
			out.Last = o.Last
		}
	}
	if r := a.relays[localRank]; r != nil {
		add(r.output())
	}
	if s := a.sinks[localRank]; s != nil {
		for _, path := range []string{s.StdoutPath, s.StderrPath} {
			if fi, err := os.Stat(path); err == nil && fi.Size() > 0 {
				add(Output{fi.Size(), fi.ModTime()})
			}
		}
	}
	return out
}

// Finish is called once, when the workers have ended. It brings everything
// that was written so far to the console and the filtered files, and closes what
// the Attempt holds. When ctx ends first, because the console is stuck, what is
// left is counted as lost. Errors say why output was lost; the workers' log files
// are not affected, unless they speak of a full disk.
func (a *Attempt) Finish(ctx context.Context) (Stats, error) {
	if !a.started {
		a.discard()
		return Stats{}, nil
	}
	for _, t := range slices.Concat(a.tails, a.filters) {
		close(t.stop)
	}
	for _, r := range a.relays {
		r.finish()
	}
	var stats Stats
	var errs []error
	for _, r := range a.relays {
		select {
		case <-r.done:
		case <-ctx.Done():
			r.abandoned.Store(true)
			errs = append(errs, fmt.Errorf("stderr not relayed in time: %w", context.Cause(ctx)))
		}
		stats.RelayedBytes += r.bytes.Load()
		stats.LostBytes += r.lost.Load()
	}
	for _, t := range a.tails {
		errs = append(errs, t.wait(ctx))
		s := t.stats()
		stats.Bytes += s.Bytes
		stats.Lines += s.Lines
		stats.LostBytes += s.LostBytes
	}
	for _, t := range a.filters {
		errs = append(errs, t.wait(ctx))
		s := t.stats()
		stats.FilteredLines += s.Lines
		stats.LostBytes += s.LostBytes
		if err := t.to.failure(); err != nil {
			errs = append(errs, fmt.Errorf("filtered lines: %w", err))
		}
		t.to.close()
	}
	if len(a.rotated) > 0 {
		a.run.rotator.end(a.rotated)
	}
	errs = append(errs, a.consoleFailure(stats))
	if a.winch != nil {
		signal.Stop(a.winch)
		close(a.winch)
	}
	if a.watcher != nil {
		a.watcher.close()
	}
	if a.noRoom || a.writesFiles() && diskFull(a.dir) {
		stats.DiskFull = true
		errs = append(errs, fmt.Errorf("no room is left in %s: the workers' own files may lack output", a.run.dir))
	}
	return stats, errors.Join(errs...)
}

// writesFiles reports whether a worker's output goes to a file.
func (a *Attempt) writesFiles() bool {
	for _, s := range a.sinks {
		if s.StdoutPath != "" || s.StderrPath != "" {
			return true
		}
	}
	return false
}

// consoleFailure returns why output did not reach the console.
func (a *Attempt) consoleFailure(stats Stats) error {
	if stats.LostBytes == 0 {
		return nil
	}
	return errors.Join(a.run.stdout.failure(), a.run.stderr.failure())
}
