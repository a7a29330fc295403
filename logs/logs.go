// Package logs decides where the output of workers goes and carries it there.
//
// A worker writes its log file itself: redirecting gives it the file as its
// stdout or stderr, so that no slow console and no dead agent ever holds it up.
// Teeing follows that file and copies whole lines, prefixed, to the console.
// What is neither redirected nor teed goes to the console unprefixed: stdout is
// inherited; stderr passes through a relay that remembers its last lines for the
// failure report, and is a terminal to the worker if it is one to the agent.
//
// A Run is one job's log directory, an Attempt one start of its workers.
//
// Source: LogsSpecs and DefaultLogsSpecs in multiprocessing/api.py, TailLog in
// multiprocessing/tail_log.py.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// TailSize is how much of a worker's stderr is kept for the report.
const TailSize = 64 << 10

// Config says where the output of a job's workers goes.
type Config struct {
	// Dir is the directory for the log directories of jobs. Empty: a new
	// temporary one, torchelastic_<8 random>. os.DevNull: no files at all;
	// everything goes to the console, unprefixed.
	Dir string
	// RunID names the job in its directory's name.
	RunID string
	// Redirects go to files; Tee to files and, prefixed, to the console.
	Redirects, Tee StdSpec
	// LocalRanksFilter are the local ranks whose output reaches the console.
	// Nil: all.
	LocalRanksFilter []int
	// DuplicateStdoutFilters and DuplicateStderrFilters: lines with any of these
	// texts are copied to filtered_stdout.log and filtered_stderr.log. They see
	// what goes to files. Nil: no such file.
	DuplicateStdoutFilters, DuplicateStderrFilters []string
	// LinePrefixTemplate may hold ${role_name}, ${local_rank}, ${rank} and
	// ${hostname}. Default DefaultLinePrefixTemplate.
	LinePrefixTemplate string
	// Stdout and Stderr are the console. Default os.Stdout, os.Stderr.
	Stdout, Stderr *os.File
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// A Run is the log directory of one job on this host.
type Run struct {
	cfg      Config
	dir      string // "" without files
	temp     string // the temporary root that New made, or ""
	hostname string
	consoles [2]*console // stdout, stderr
}

// New checks cfg and makes the job's directory, <Dir>/<RunID>_<8 random>. Dir is
// made absolute, so that workers that change directory still find their files.
func New(cfg Config) (*Run, error) {
	if cfg.LinePrefixTemplate == "" {
		cfg.LinePrefixTemplate = DefaultLinePrefixTemplate
	}
	if cfg.Stdout == nil {
		cfg.Stdout = os.Stdout
	}
	if cfg.Stderr == nil {
		cfg.Stderr = os.Stderr
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	r := &Run{cfg: cfg, consoles: [2]*console{newConsole(cfg.Stdout), newConsole(cfg.Stderr)}}
	if name, err := os.Hostname(); err == nil {
		r.hostname, _, _ = strings.Cut(name, ".")
	}
	if cfg.Dir == os.DevNull {
		if cfg.DuplicateStdoutFilters != nil || cfg.DuplicateStderrFilters != nil {
			return nil, fmt.Errorf("log directory %s keeps no files, so there is no place for duplicate filters; name another --log-dir or leave the filters out", os.DevNull)
		}
		return r, nil
	}
	root := cfg.Dir
	if root == "" {
		var err error
		if r.temp, err = mkdirRandom(os.TempDir(), "torchelastic_"); err != nil {
			return nil, fmt.Errorf("make a log directory: %w; name another with --log-dir", err)
		}
		root = r.temp
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("log directory: %w", err)
	}
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("log_dir: %s is a file; name a directory with --log-dir", root)
	}
	if err := os.MkdirAll(root, 0o777); err != nil {
		return nil, fmt.Errorf("log directory: %w; name another with --log-dir", err)
	}
	// A run ID may hold anything; as a part of a file name it may not.
	id := strings.NewReplacer("/", "_", "\x00", "_").Replace(cfg.RunID)
	if len(id) > 200 {
		id = id[:200]
	}
	if r.dir, err = mkdirRandom(root, id+"_"); err != nil {
		return nil, fmt.Errorf("log directory: %w; name another with --log-dir", err)
	}
	return r, nil
}

// mkdirRandom makes a directory of which only the user knows, as Python's
// mkdtemp does.
func mkdirRandom(parent, prefix string) (string, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
	for range 100 {
		var suffix [8]byte
		for i := range suffix {
			suffix[i] = letters[rand.IntN(len(letters))]
		}
		path := filepath.Join(parent, prefix+string(suffix[:]))
		err := os.Mkdir(path, 0o700)
		if !errors.Is(err, fs.ErrExist) {
			return path, err
		}
	}
	return "", fmt.Errorf("%s: no free name", filepath.Join(parent, prefix))
}

// Dir returns the job's directory, absolute; "" if there are no files.
func (r *Run) Dir() string { return r.dir }

// Close tidies up. Unless keep is set, a temporary directory that New made is
// removed if nothing was kept in it.
func (r *Run) Close(keep bool) error {
	if r.temp == "" || keep {
		return nil
	}
	return removeEmpty(r.temp)
}

// removeEmpty removes a directory and what is below it, unless there is a file.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			return nil
		}
		if err := removeEmpty(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOTEMPTY && err != unix.EEXIST {
		return &fs.PathError{Op: "remove", Path: dir, Err: err}
	}
	return nil
}

// A Worker is what an Attempt must know of one worker.
type Worker struct {
	LocalRank, Rank int
	Role            string
}

// A Sink is where one worker's output goes.
type Sink struct {
	// Stdout and Stderr are what the worker gets; valid until Started.
	Stdout, Stderr *os.File
	// StdoutPath and StderrPath are its log files, or "".
	StdoutPath, StderrPath string
	// ErrorFile is the path for TORCHELASTIC_ERROR_FILE; "" without files.
	ErrorFile string
}

// Stats says what became of the output of an attempt.
type Stats struct {
	// Bytes were copied to the console and the filtered files.
	Bytes int64
	// LostBytes could not be: the console was closed or stuck, a disk was full.
	// The workers' own log files have them.
	LostBytes int64
	// DiskFull says that the log directory's file system has no space left, so
	// that the workers' own files may lack the end.
	DiskFull bool
}

// An Attempt carries the output of one start of the workers.
type Attempt struct {
	run       *Run
	dir       string
	sinks     map[int]Sink
	children  []*os.File // the workers' ends, closed by Started
	followers []*follower
	relays    map[int]*relay
	filtered  [2]*console
	watcher   *watcher
	started   bool
}

// Attempt makes the directory attempt_<restart> and opens what the workers write
// to. If an attempt with that number of restarts was there before (a change of
// membership counts no restart) it is attempt_<restart>.1, .2 and so on; an
// earlier attempt's files are never touched. The caller calls Started and Finish.
func (r *Run) Attempt(restart int, workers []Worker) (_ *Attempt, err error) {
	a := &Attempt{run: r, sinks: make(map[int]Sink, len(workers)), relays: map[int]*relay{}}
	defer func() {
		if err != nil {
			a.closeAll()
		}
	}()
	if r.dir != "" {
		if a.dir, err = newAttemptDir(r.dir, restart); err != nil {
			return nil, fmt.Errorf("log directory: %w", err)
		}
		for i, filter := range [2][]string{r.cfg.DuplicateStdoutFilters, r.cfg.DuplicateStderrFilters} {
			if filter == nil {
				continue
			}
			file, err := create(filepath.Join(a.dir, "filtered_"+streamNames[i]+".log"))
			if err != nil {
				return nil, fmt.Errorf("log directory: %w", err)
			}
			a.filtered[i] = newConsole(file)
		}
	}
	for _, w := range workers {
		if err := a.open(w); err != nil {
			return nil, fmt.Errorf("output of local rank %d: %w", w.LocalRank, err)
		}
	}
	if len(a.followers) > 0 {
		a.watcher = newWatcher(r.cfg.Logger)
	}
	return a, nil
}

var streamNames = [2]string{"stdout", "stderr"}

func newAttemptDir(parent string, restart int) (string, error) {
	dir := filepath.Join(parent, "attempt_"+strconv.Itoa(restart))
	name := dir
	for n := 1; ; n++ {
		err := os.Mkdir(name, 0o777)
		if !errors.Is(err, fs.ErrExist) {
			return name, err
		}
		name = dir + "." + strconv.Itoa(n)
	}
}

// create makes a log file. Appending lets several processes of one worker share
// it, and its owner truncate it.
func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o666)
}

// open makes the sink of one worker.
// Source: the table of spec/process.md §3.
func (a *Attempt) open(w Worker) error {
	cfg := &a.run.cfg
	sink := Sink{}
	if a.dir != "" {
		dir := filepath.Join(a.dir, strconv.Itoa(w.LocalRank))
		if err := os.Mkdir(dir, 0o777); err != nil {
			return err
		}
		sink.ErrorFile = filepath.Join(dir, "error.json")
	}
	shown := cfg.LocalRanksFilter == nil || slices.Contains(cfg.LocalRanksFilter, w.LocalRank)
	prefix := Expand(cfg.LinePrefixTemplate, map[string]string{
		"role_name": w.Role, "local_rank": strconv.Itoa(w.LocalRank),
		"rank": strconv.Itoa(w.Rank), "hostname": a.run.hostname,
	})
	for i, std := range [2]Std{StdOut, StdErr} {
		tee := cfg.Tee.For(w.LocalRank)&std != 0
		toFile := a.dir != "" && (tee || cfg.Redirects.For(w.LocalRank)&std != 0)
		file, path, err := (*os.File)(nil), "", error(nil)
		switch {
		case toFile:
			path = filepath.Join(filepath.Dir(sink.ErrorFile), streamNames[i]+".log")
			if file, err = create(path); err != nil {
				return err
			}
			a.children = append(a.children, file)
			f := &follower{path: path, prefix: []byte(prefix), logger: cfg.Logger}
			if tee && shown {
				f.console = a.run.consoles[i]
			}
			if shown {
				f.filtered = a.filtered[i]
				f.needles = [2][]string{cfg.DuplicateStdoutFilters, cfg.DuplicateStderrFilters}[i]
			}
			if f.console != nil || f.filtered != nil {
				a.followers = append(a.followers, f)
			}
		case std == StdErr:
			var to *console
			if shown {
				to = a.run.consoles[i]
			}
			relay, child, err := newRelay(to)
			if err != nil {
				return err
			}
			a.relays[w.LocalRank] = relay
			a.children = append(a.children, child)
			file = child
		case shown:
			file = a.run.consoles[i].file
		default:
			if file, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
				return err
			}
			a.children = append(a.children, file)
		}
		if std == StdOut {
			sink.Stdout, sink.StdoutPath = file, path
		} else {
			sink.Stderr, sink.StderrPath = file, path
		}
	}
	a.sinks[w.LocalRank] = sink
	return nil
}

// Dir returns the attempt's directory; "" without files.
func (a *Attempt) Dir() string { return a.dir }

// Sink returns where a worker's output goes.
func (a *Attempt) Sink(localRank int) Sink { return a.sinks[localRank] }

// Started is called once, when every worker has its files: it closes the
// agent's copies of the workers' ends and begins to carry output.
func (a *Attempt) Started() error {
	a.started = true
	var errs []error
	for _, file := range a.children {
		errs = append(errs, file.Close())
	}
	a.children = nil
	for _, r := range a.relays {
		r.start()
	}
	for _, f := range a.followers {
		f.begin(a.watcher)
	}
	return errors.Join(errs...)
}

// StderrTail returns the last TailSize bytes, or fewer, of a worker's stderr,
// wherever it goes. It may be called at any time.
func (a *Attempt) StderrTail(localRank int) []byte {
	if r := a.relays[localRank]; r != nil {
		return r.tail()
	}
	path := a.sinks[localRank].StderrPath
	if path == "" {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	buf := make([]byte, min(info.Size(), TailSize))
	n, _ := file.ReadAt(buf, info.Size()-int64(len(buf)))
	return buf[:n]
}

// Finish is called once, when the workers and what they left behind have ended.
// Everything that they wrote reaches the console and the filtered files, then
// all is closed. A console that takes nothing holds Finish up until ctx is done;
// what is not written by then is counted as lost.
func (a *Attempt) Finish(ctx context.Context) (Stats, error) {
	var stats Stats
	if !a.started {
		a.closeAll()
		return stats, nil
	}
	var errs []error
	for _, r := range a.relays {
		r.finish(ctx)
	}
	for _, f := range a.followers {
		close(f.finishing)
	}
	for _, f := range a.followers {
		select {
		case <-f.done:
			errs = append(errs, f.err)
		case <-ctx.Done():
			stats.LostBytes += f.behind()
			errs = append(errs, fmt.Errorf("%s: not copied to the end: %w", f.path, context.Cause(ctx)))
		}
	}
	if a.watcher != nil {
		a.watcher.close()
	}
	for _, c := range append(a.run.consoles[:], a.filtered[:]...) {
		if c == nil {
			continue
		}
		stats.Bytes += c.written.Swap(0)
		if lost := c.lost.Swap(0); lost > 0 {
			stats.LostBytes += lost
			errs = append(errs, c.failure())
		}
	}
	for _, c := range a.filtered {
		if c != nil {
			errs = append(errs, c.file.Close())
		}
	}
	if a.dir != "" && noSpace(a.dir) {
		stats.DiskFull = true
		errs = append(errs, fmt.Errorf("no space is left for log files in %s; the workers' own files may lack their end", a.dir))
	}
	return stats, errors.Join(errs...)
}

// closeAll undoes an attempt that was not started.
func (a *Attempt) closeAll() {
	for _, file := range a.children {
		file.Close()
	}
	for _, r := range a.relays {
		r.parent.Close()
	}
	for _, c := range a.filtered {
		if c != nil {
			c.file.Close()
		}
	}
	if a.watcher != nil {
		a.watcher.close()
	}
}
