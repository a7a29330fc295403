package postmortem

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/jobfile"
)

// What is looked at, at most.
const (
	maxEntries  = 20_000 // of one directory
	maxAttempts = 2_000
	maxWorkers  = 4_096 // of one attempt
)

// A Dir is the log directory of one agent's run.
type Dir struct {
	Path  string `json:"dir"`
	RunID string `json:"run_id"` // as the directory's name has it
	// Attempts is how many there are, Time when the last of them began.
	Attempts int       `json:"attempts"`
	Time     time.Time `json:"time"`
}

// A Listed is a run in a list, with what became of it.
type Listed struct {
	Dir
	Started time.Time `json:"started,omitzero"`
	Outcome Outcome   `json:"outcome"`
	Cause   string    `json:"cause,omitempty"` // of the last attempt
}

// List reads what became of runs.
func List(runs []Dir) []Listed {
	list := make([]Listed, 0, len(runs))
	for _, d := range runs {
		l := Listed{Dir: d, Outcome: Unknown}
		if run, err := Read(d.Path); err == nil {
			l.Started, l.Outcome, l.Cause = run.Started, run.Outcome, run.Cause
			if last := run.Last(); last != nil {
				l.Cause = cmp.Or(last.Cause, run.Cause)
			}
		}
		list = append(list, l)
	}
	return list
}

// A NotFoundError says that there is no run in a directory.
type NotFoundError struct{ Path string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s holds no run: there is neither an attempt_0 in it nor a directory that has one; give the "+
		"--log-dir of a job, or the run's directory in it", shown(e.Path))
}

// shown is a path for a message: one line, in which nothing reads as advice, whatever the path's name is.
func shown(path string) string { return strings.ReplaceAll(text.Line(path, 4096), "; ", `;\ `) }

// Find returns the runs that a directory holds, the newest first, and last those that have
// started no workers: those in a --log-dir, or the one whose directory it is. A directory
// attempt_N stands for its run; attempt is then its name, else "". The error is a
// *NotFoundError if there is no run.
func Find(path string) (runs []Dir, attempt string, err error) {
	defer func() {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			e.Path = shown(e.Path)
		}
	}()
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%s: %w; give the --log-dir of a job, or the run's directory in it",
			shown(path), syscall.ENOENT)
	}
	if err != nil {
		return nil, "", err
	}
	if !info.IsDir() {
		return nil, "", fmt.Errorf("%s is a file; give the log directory of a job", shown(path))
	}
	if _, ok := parseAttempt(filepath.Base(path)); ok {
		path, attempt = filepath.Dir(path), filepath.Base(path)
	}
	entries, err := list(path)
	if err != nil {
		return nil, "", err
	}
	if run, ok := runOf(path, entries); ok {
		return []Dir{run}, attempt, nil
	}
	for _, e := range entries {
		if sub := filepath.Join(path, e.Name()); e.IsDir() {
			inner, err := list(sub)
			if run, ok := runOf(sub, inner); ok && err == nil { // else it may be another user's
				runs = append(runs, run)
			}
		}
	}
	if runs == nil {
		return nil, "", &NotFoundError{path}
	}
	slices.SortFunc(runs, func(a, b Dir) int {
		return cmp.Or(min(b.Attempts, 1)-min(a.Attempts, 1), b.Time.Compare(a.Time), cmp.Compare(a.Path, b.Path))
	})
	return runs, attempt, nil
}

// runOf reports whether the entries are those of a run's directory. That of a spare may have no
// attempt.
func runOf(path string, entries []fs.DirEntry) (Dir, bool) {
	d := Dir{Path: path, RunID: runID(filepath.Base(path))}
	is := false
	for _, e := range entries {
		_, attempt := parseAttempt(e.Name())
		if attempt = attempt && e.IsDir(); attempt {
			d.Attempts++
		} else if e.Name() != jobfile.Name || !e.Type().IsRegular() {
			continue
		}
		is = true
		if info, err := e.Info(); err == nil && info.ModTime().After(d.Time) && (attempt || d.Attempts == 0) {
			d.Time = info.ModTime()
		}
	}
	return d, is
}

// runID takes the eight random characters from a directory's name.
func runID(name string) string {
	if i := len(name) - 9; i > 0 && name[i] == '_' {
		return name[:i]
	}
	return name
}

// list returns a directory's entries, at most maxEntries, by name.
func list(path string) ([]fs.DirEntry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0) // no FIFO, which may have its name by now
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) && len(entries) == 0 {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// A number is what attempt_2.1 says: restart 2, and once more with that count.
type number struct{ restart, again int }

func (n number) compare(m number) int {
	return cmp.Or(cmp.Compare(n.restart, m.restart), cmp.Compare(n.again, m.again))
}

// String is the name of the attempt's directory.
func (n number) String() string {
	if n.again > 0 {
		return fmt.Sprintf("attempt_%d.%d", n.restart, n.again)
	}
	return fmt.Sprintf("attempt_%d", n.restart)
}

// attempts are those that have a directory among the entries, in order.
func attempts(entries []fs.DirEntry) (all []number) {
	for _, e := range entries {
		if n, ok := parseAttempt(e.Name()); ok && e.IsDir() {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, number.compare)
	return all
}

// parseAttempt reads the name of an attempt's directory.
func parseAttempt(name string) (n number, ok bool) {
	count, ok := strings.CutPrefix(name, "attempt_")
	if !ok {
		return n, false
	}
	first, second, dotted := strings.Cut(count, ".")
	if n.restart, ok = decimal(first); !ok || !dotted {
		return n, ok
	}
	n.again, ok = decimal(second)
	return n, ok && n.again > 0
}

// decimal reads a number without sign or leading zeros.
func decimal(digits string) (int, bool) {
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == digits
}

// IsAttempt reports whether a directory's name is that of an attempt: attempt_1,
// attempt_1.2.
func IsAttempt(name string) bool {
	_, ok := parseAttempt(name)
	return ok
}

// Only leaves one attempt of a run, that of a name. The error says which there
// are.
func (run *Run) Only(name string) error {
	var names []string
	for _, a := range run.Attempts {
		if a.Name == name {
			run.Attempts = []Attempt{a}
			return nil
		}
		names = append(names, a.Name)
	}
	if n := len(names); n > 10 {
		names = append(names[:4:4], append([]string{"..."}, names[n-5:]...)...)
	}
	return fmt.Errorf("%s has no %s; choose from %s", shown(run.Dir), name, strings.Join(names, ", "))
}
