package logs

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/format/text"
)

// Config says where output goes.
// Source: LogsSpecs in torch/distributed/elastic/multiprocessing/api.py.
type Config struct {
	// Dir is where the run's directory is made, with its parents. A relative
	// path is made absolute at once. Empty means a new directory
	// torchelastic_<8 random> where Python's tempfile puts things: below
	// $TMPDIR, or below /tmp if that cannot be used. os.DevNull means that there
	// are no files: all output goes to the console as it is, and Redirects and
	// Tee count for nothing.
	Dir string
	// RunID begins the name of the run's directory. A slash in it becomes an
	// underscore there, and a very long one is cut.
	RunID string
	// Redirects are the streams that go to files, Tee those that go to files
	// and, line by line, to the console.
	Redirects, Tee StdSpec
	// LocalRanksFilter lists the local ranks that may reach the console and
	// the filtered files; empty means all. Files are written for the others
	// too.
	LocalRanksFilter []int
	// RanksFilter lists ranges of global ranks, first and last, in the same way; nil means all.
	// A worker has to be in both lists.
	RanksFilter [][2]int
	// DuplicateStdoutFilters and DuplicateStderrFilters copy each line that
	// holds one of their strings to filtered_stdout.log and
	// filtered_stderr.log, from every worker that has a file for the stream.
	// An empty string is in every line. Without strings there is no such file.
	DuplicateStdoutFilters, DuplicateStderrFilters []string
	// LinePrefixTemplate is put before each line that tee copies, with
	// ${role_name}, ${local_rank}, ${rank} and ${hostname} replaced. Empty
	// means "[${role_name}${local_rank}]:".
	LinePrefixTemplate string
	// Collapse copies a line that several ranks write within 100 ms, equal
	// to the last byte, once to the console: local and global ranks in the prefix
	// are ranges then, "0-2,5". A line that not all of them have written waits for
	// as long at most. Only lines that tee copies are meant.
	Collapse bool
	// Stdout and Stderr are the agent's console. Nil means os.Stdout and
	// os.Stderr. They stay the caller's, who keeps them open until Close. Workers write
	// to an *os.File themselves. Any other writer is at the end of a pipe: it gets
	// all that they write from one goroutine, even after it has returned an error, and
	// Close waits for it.
	Stdout, Stderr io.Writer
	// Layout names the files of one worker. dir is the attempt's directory, which is
	// there already; a relative name is below it, and directories are made. A file below
	// Run.Dir must be new; another one may be there, and is emptied. Nil means
	// TorchElastic's: stdout.log, stderr.log and error.json in a directory per local rank.
	// Only that is what muster's commands find.
	// Source: LogsSpecs.reify.
	Layout func(dir string, w Worker) Files
	Logger *slog.Logger // nil means slog.Default()
}

// Files are the paths of one worker's files. Stdout and Stderr are made if the stream
// goes to a file at all.
type Files struct{ Stdout, Stderr, ErrorFile string }

// defaultLayout is TorchElastic's: a directory per local rank.
func defaultLayout(dir string, w Worker) Files {
	dir = filepath.Join(dir, strconv.Itoa(w.LocalRank))
	return Files{filepath.Join(dir, "stdout.log"), filepath.Join(dir, "stderr.log"), filepath.Join(dir, "error.json")}
}

// A Run is the log directory of one agent and its way to the console. Each start of the worker group
// is an Attempt of it, with a directory of its own; Close ends the Run after all of them have
// finished. Its methods may be called concurrently.
// Source: DefaultLogsSpecs in multiprocessing/api.py.
type Run struct {
	// Nothing changes between New and Close but root and lock, when dir is made again; the consoles
	// have locks of their own. Attempts use all of it but close nothing.

	cfg      Config
	log      *slog.Logger
	dir      string                  // absolute; "" without files
	root     atomic.Pointer[os.Root] // dir, wherever it is by now; nil without files
	lock     *os.File                // of dir among temporary files; systemd-tmpfiles skips what is locked
	tempRoot string                  // made by New and ours to remove; else ""
	hostname string
	stdout   *console
	stderr   *console

	outFile, errFile *os.File // of the console, or the pipes to it
	pipes            []*relay
	closeOnce        sync.Once
}

// New checks cfg, reporting every problem at once, and makes the run's
// directory. The caller must Close the Run.
func New(cfg Config) (*Run, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &Run{cfg: cfg, log: cmp.Or(cfg.Logger, slog.Default())}
	r.cfg.LinePrefixTemplate = cmp.Or(cfg.LinePrefixTemplate, defaultLinePrefix)
	if r.cfg.Layout == nil {
		r.cfg.Layout = defaultLayout
	}
	r.cfg.Stdout, r.cfg.Stderr = cmp.Or[io.Writer](cfg.Stdout, os.Stdout), cmp.Or[io.Writer](cfg.Stderr, os.Stderr)
	r.hostname, _ = os.Hostname()
	if err := r.makeDir(); err != nil {
		return nil, err
	}
	if err := r.openConsole(); err != nil {
		return nil, errors.Join(err, r.Close(false))
	}
	if r.dir != "" {
		r.log.Info("log directory", "dir", r.dir)
	}
	return r, nil
}

// openConsole opens the ways to Config.Stdout and Config.Stderr.
func (r *Run) openConsole() (err error) {
	if r.outFile, err = r.file(r.cfg.Stdout); err != nil {
		return err
	}
	r.errFile = r.outFile
	if !sameWriter(r.cfg.Stdout, r.cfg.Stderr) {
		if r.errFile, err = r.file(r.cfg.Stderr); err != nil {
			return err
		}
	}
	r.stdout = newConsole(r.outFile)
	if r.stderr = r.stdout; !sameFile(r.outFile, r.errFile) {
		r.stderr = newConsole(r.errFile)
	}
	return nil
}

// file is w, or the end of a pipe to it.
func (r *Run) file(w io.Writer) (*os.File, error) {
	if f, ok := w.(*os.File); ok {
		return f, nil
	}
	out, in, err := relayPipe()
	if err != nil {
		return nil, err
	}
	p := newRelay(out, &console{w: w}, 0)
	p.in = in
	r.pipes = append(r.pipes, p)
	go p.run()
	return in, nil
}

func (cfg *Config) check() error {
	errs := []error{cfg.Redirects.check("redirects"), cfg.Tee.check("tee")}
	for _, w := range []io.Writer{cfg.Stdout, cfg.Stderr} {
		if f, ok := w.(*os.File); ok && f == nil {
			errs = append(errs, errors.New("logs.Config's Stdout or Stderr is a nil *os.File"))
		}
	}
	if cfg.Dir == os.DevNull && len(cfg.DuplicateStdoutFilters)+len(cfg.DuplicateStderrFilters) > 0 {
		errs = append(errs, fmt.Errorf("%s writes a file, and logs.Config.Dir %s means no files; give a log directory",
			"logs.Config.DuplicateStdoutFilters or logs.Config.DuplicateStderrFilters", os.DevNull))
	}
	if strings.ContainsRune(cfg.RunID, 0) || strings.ContainsRune(cfg.Dir, 0) {
		errs = append(errs, errors.New("run id or log directory holds a zero byte"))
	}
	if cfg.Dir != "" && cfg.Dir != os.DevNull {
		if fi, err := os.Stat(cfg.Dir); err == nil && !fi.IsDir() {
			errs = append(errs, fmt.Errorf("log directory: %s is a file; give a directory, or %s for no files: %w", cfg.Dir,
				os.DevNull, syscall.ENOTDIR))
		}
	}
	return errors.Join(errs...)
}

// makeDir makes the run's directory.
func (r *Run) makeDir() error {
	if r.cfg.Dir == os.DevNull {
		return nil
	}
	root, advice := r.cfg.Dir, ""
	var err error
	if root == "" {
		temp := tempdir.Find()
		if named := os.Getenv("TMPDIR"); named != "" && filepath.Clean(named) != temp && filepath.IsAbs(named) {
			r.log.Warn("TMPDIR cannot be used for log files", "tmpdir", named, "instead", temp)
		}
		root, err = makeRandomDir(temp, "torchelastic_")
		r.tempRoot, advice = root, ", or set TMPDIR"
	} else if root, err = filepath.Abs(root); err == nil {
		err = os.MkdirAll(root, 0o777)
	}
	dir := ""
	if err == nil {
		dir, err = makeRandomDir(root, dirName(r.cfg.RunID)+"_")
	}
	if err == nil {
		err = r.enter(dir)
	}
	if err != nil {
		if r.tempRoot != "" {
			os.Remove(r.tempRoot)
		}
		return fmt.Errorf("log directory: %w; name a writable directory with logs.Config.Dir%s", err, advice)
	}
	r.dir = dir
	return nil
}

// enter opens the run's directory, and locks it where it may be swept. A lock on a network file system could wait.
func (r *Run) enter(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	if old := r.root.Swap(root); old != nil {
		old.Close()
	}
	for _, temp := range []string{"/tmp", "/var/tmp", tempdir.Find()} {
		if strings.HasPrefix(dir, temp+"/") {
			r.lock.Close()
			if r.lock, err = root.Open("."); err == nil {
				_ = syscall.Flock(int(r.lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
			}
			break
		}
	}
	return nil
}

// remake makes the run's directory again after somebody has removed it: a temporary one only if its parent is
// gone, too, since what is there may be another user's.
func (r *Run) remake() (err error) {
	if r.tempRoot != "" {
		err = os.Mkdir(r.tempRoot, 0o700)
	} else {
		err = os.MkdirAll(filepath.Dir(r.dir), 0o777)
	}
	if err = cmp.Or(err, os.Mkdir(r.dir, 0o700)); err != nil {
		return err
	}
	return r.enter(r.dir)
}

// below says that a path is in the run's directory, and which it is from there. Such
// files are opened through the directory: another user who can replace it has no say.
func (r *Run) below(path string) (rel string, ok bool) {
	if r.dir == "" {
		return "", false
	}
	return strings.CutPrefix(filepath.Clean(path), r.dir+"/")
}

// named puts the whole path into an error of a file of the run's directory.
func named(path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		e.Path = path
	}
	return err
}

// open opens a worker's log file for reading, as safeopen.Open does.
func (r *Run) open(path string) (*os.File, fs.FileInfo, error) {
	if rel, ok := r.below(path); ok {
		return safeopen.OpenIn(r.root.Load(), rel)
	}
	return safeopen.Open(path)
}

// maxDirName leaves room in a file name (255 bytes) for what is appended.
const maxDirName = 200

// dirName makes one directory name's beginning of a run id.
func dirName(runID string) string {
	name := strings.ReplaceAll(runID, "/", "_")
	if len(name) > maxDirName {
		name = strings.ToValidUTF8(name[:maxDirName], "")
	}
	return name
}

// makeRandomDir makes a directory in parent that only its owner may enter,
// with a name of prefix and 8 random characters.
func makeRandomDir(parent, prefix string) (dir string, err error) {
	for range 100 {
		dir = filepath.Join(parent, prefix+strings.ToLower(rand.Text()[:8]))
		if err = os.Mkdir(dir, 0o700); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return dir, err
}

// Dir returns the run's directory, an absolute path, or "" when there are no
// files.
func (r *Run) Dir() string { return r.dir }

// Console returns the agent's stdout and stderr as the workers' output reaches
// them. What the agent itself writes there while workers run belongs through
// these: a write neither splits a worker's line nor is split by one. They may
// be used concurrently, and until Close.
func (r *Run) Console() (stdout, stderr io.Writer) {
	return consoleWriter{r.stdout}, consoleWriter{r.stderr}
}

// Close ends the use of the console. With keep false, which is meant for jobs
// that succeeded, a temporary directory that New made is removed if it holds
// no file any more. Every Attempt must have been finished. Later calls do
// nothing.
func (r *Run) Close(keep bool) (err error) {
	r.closeOnce.Do(func() {
		if r.tempRoot != "" && !keep {
			if err = removeEmpty(r.tempRoot); err != nil {
				err = fmt.Errorf("remove empty log directory: %w", err)
			}
		}
		for _, c := range []*console{r.stdout, r.stderr} {
			if c != nil {
				c.close()
			}
		}
		for _, p := range r.pipes {
			p.in.Close()
			p.finish()
			<-p.done
			if err := p.to.failure(); err != nil {
				r.log.Warn("the console accepts no more output of the workers", "error", err)
			}
		}
		if root := r.root.Load(); root != nil {
			root.Close()
		}
		r.lock.Close()
	})
	return err
}

// removeEmpty removes dir and the directories in it, as far as they hold
// nothing else.
func removeEmpty(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		if err == nil {
			if err = os.Remove(dir); errors.Is(err, fs.ErrExist) { // it is not empty
				err = nil
			}
		}
	}
	return err
}

// shows reports whether a worker may reach the console.
func (r *Run) shows(w Worker) bool {
	local := r.cfg.LocalRanksFilter
	return (len(local) == 0 || slices.Contains(local, w.LocalRank)) && text.RankSet(r.cfg.RanksFilter).Has(w.Rank)
}
