package postmortem

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/job/jobfile"
)

// How much is read, at most.
const (
	maxTotal   = 256 << 20 // for one run
	maxReport  = 8 << 20   // of a report.json
	maxAutopsy = 16 << 20  // of an autopsy.json
	tailBytes  = 64 << 10  // of a stderr.log
)

// An Outcome is how a run ended, as far as its directory says.
type Outcome string

const (
	Succeeded Outcome = "succeeded"
	Failed    Outcome = "failed"
	Preempted Outcome = "preempted" // the whole job was told to stop and may be started again
	Stopped   Outcome = "stopped"   // this host's agent was told to stop
	Left      Outcome = "left"      // the job continues without this host
	Running   Outcome = "running"
	Killed    Outcome = "killed" // the agent is gone and did not say how the job ended
	// Renewed is said of an attempt: its workers started anew without a failure.
	Renewed Outcome = "renewed"
	// Unknown: nothing tells. The directory is torchrun's, and no worker has left an
	// error.
	Unknown Outcome = "unknown"
)

// A Run is what one agent has left.
type Run struct {
	Dir     string  `json:"dir"`
	RunID   string  `json:"run_id"`
	Title   string  `json:"title,omitempty"` // what ran
	Host    string  `json:"host,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Cause is why, as the agent has it, in one line.
	Cause   string    `json:"cause,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Restarts is how many were counted, MaxRestarts how many were allowed; -1 if
	// that is not known.
	Restarts    int       `json:"restarts"`
	MaxRestarts int       `json:"max_restarts"`
	Attempts    []Attempt `json:"attempts"`
	// Events is the path of events.jsonl, "" where there is none.
	Events   string   `json:"events,omitempty"`
	Problems []string `json:"problems,omitempty"`

	agent *jobfile.File // nil where it has written nothing that can be believed
}

// An Attempt is one start of the workers.
type Attempt struct {
	Name string `json:"name"` // attempt_1.2
	Dir  string `json:"dir"`
	// Restart is the restart count, Again counts the starts with it from 0: after a
	// change of the hosts the workers start anew without a restart being counted.
	Restart int       `json:"restart"`
	Again   int       `json:"again,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// TimesFrom says where Started and Ended come from: "report", "time", "job", or
	// "files", which is less exact.
	TimesFrom string  `json:"times_from,omitempty"`
	Outcome   Outcome `json:"outcome"`
	// Cause is the root cause in one line, with rank and host; of an attempt that was
	// preempted, who asked.
	Cause string `json:"cause,omitempty"`
	// Preempted says who asked the whole job to stop; nil if nobody did.
	Preempted *failure.Preemption `json:"preempted,omitempty"`
	// Report is the path of report.json, "" where there is none. Then Failures are
	// what the workers' error.json and stderr.log say.
	Report   string                    `json:"report,omitempty"`
	Failures []*failure.ProcessFailure `json:"failures,omitempty"` // the root cause first
	// Silent are hosts that did not say how their workers ended; LeftOut is how many
	// failures are not in the report.
	Silent    []string  `json:"silent,omitempty"`
	LeftOut   int       `json:"left_out,omitempty"`
	Autopsies []Autopsy `json:"autopsies,omitempty"`
	// GPUs is the path of what nvidia-smi -q said on the host of a worker that crashed.
	GPUs     string   `json:"gpus,omitempty"`
	Workers  []Worker `json:"workers"` // those of this host, by local rank
	Problems []string `json:"problems,omitempty"`
}

// Duration is how long the attempt ran; 0 if that is not known.
func (a *Attempt) Duration() time.Duration {
	if a.Started.IsZero() || !a.Ended.After(a.Started) {
		return 0
	}
	return a.Ended.Sub(a.Started)
}

// A Worker is one local rank of an attempt.
type Worker struct {
	Rank      int    `json:"rank"` // -1: not known
	LocalRank int    `json:"local_rank"`
	Dir       string `json:"dir"`
	// Paths of the files that are there, else "".
	Stdout    string `json:"stdout,omitempty"`
	Stderr    string `json:"stderr,omitempty"`
	ErrorFile string `json:"error_file,omitempty"`
}

// A reader reads one run within its budget.
type reader struct{ budget int64 }

// Read reads a run's directory. What could not be read is said in the Problems of
// the Run and its Attempts; the error says that the directory itself could not be.
func Read(dir string) (*Run, error) {
	entries, err := list(dir)
	if err != nil {
		return nil, err
	}
	rd := &reader{budget: maxTotal}
	run := &Run{Dir: dir, RunID: clean(runID(filepath.Base(dir))), Outcome: Unknown, MaxRestarts: -1,
		Attempts: []Attempt{}}
	for _, n := range attempts(entries) {
		run.Attempts = append(run.Attempts, Attempt{
			Name: n.String(), Dir: filepath.Join(dir, n.String()), Restart: n.restart, Again: n.again, Outcome: Unknown})
	}
	run.job()
	if len(run.Attempts) == 0 && run.agent == nil {
		return nil, &NotFoundError{dir}
	}
	if n := len(run.Attempts) - maxAttempts; n > 0 {
		run.problem("there are %d attempts; the first %d are not shown", len(run.Attempts), n)
		run.Attempts = run.Attempts[n:]
	}
	run.Events = present(dir, events.FileName, true)
	recorded := recordedTimes(dir)
	for i := range run.Attempts {
		rd.attempt(run, &run.Attempts[i], recorded)
	}
	run.sum()
	return run, nil
}

// attempt fills in one attempt: last, when the workers are known, what failed.
func (rd *reader) attempt(run *Run, a *Attempt, recorded map[string]*times) {
	entries, err := list(a.Dir)
	if err != nil {
		a.problem("%v", err)
		return
	}
	rd.workers(a, entries)
	rd.report(run, a)
	if a.Report == "" && a.Outcome != Preempted {
		rd.guess(run, a)
	}
	rd.autopsies(a, entries)
	a.GPUs = present(a.Dir, "nvidia-smi.txt", true)
	a.ranks(run)
	a.times(recorded[a.Name])
}

// workers finds the directories of the local ranks.
func (rd *reader) workers(a *Attempt, entries []fs.DirEntry) {
	for _, e := range entries {
		local, ok := decimal(e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		if len(a.Workers) == maxWorkers {
			a.problem("there are more than %d workers; the rest is not shown", maxWorkers)
			break
		}
		w := Worker{Rank: -1, LocalRank: local, Dir: filepath.Join(a.Dir, e.Name())}
		w.Stdout = present(w.Dir, "stdout.log", true)
		w.Stderr = present(w.Dir, "stderr.log", true)
		w.ErrorFile = present(w.Dir, "error.json", false)
		a.Workers = append(a.Workers, w)
	}
	slices.SortFunc(a.Workers, func(x, y Worker) int { return x.LocalRank - y.LocalRank })
}

// ranks finds the global ranks of workers from one of them: those of a host follow
// each other. In a job of one host they are the local ranks.
func (a *Attempt) ranks(run *Run) {
	base := -1
	if run.agent != nil && run.agent.Begin.MaxNodes == 1 {
		base = 0
	}
	for _, w := range a.Workers {
		if w.Rank >= w.LocalRank {
			base = w.Rank - w.LocalRank
		}
	}
	if p := a.Preempted; base < 0 && p != nil && len(p.Workers) > 0 {
		base = p.Workers[0].Rank - p.Workers[0].LocalRank
	}
	if base < 0 {
		return
	}
	for i := range a.Workers {
		a.Workers[i].Rank = base + a.Workers[i].LocalRank
	}
}

// times says when the attempt ran, from the most exact source there is; recorded may be nil.
func (a *Attempt) times(recorded *times) {
	for _, f := range a.Failures {
		if a.Report != "" {
			a.span("report", f.Started, f.Ended)
		}
	}
	if a.Preempted != nil {
		for _, w := range a.Preempted.Workers {
			a.span("report", time.Time{}, w.Ended)
		}
	}
	if recorded != nil && a.Duration() == 0 {
		a.span("time", recorded.started, recorded.ended)
	}
	if a.Duration() > 0 {
		return
	}
	// The directory was last changed when those of the workers were made in it,
	// unless a report came later.
	info, err := os.Lstat(a.Dir)
	if err != nil {
		return
	}
	began := info.ModTime()
	for _, w := range a.Workers {
		if info, err := os.Lstat(w.Dir); err == nil && info.ModTime().Before(began) {
			began = info.ModTime()
		}
	}
	if !a.Started.IsZero() {
		began = a.Started
	}
	a.span("files", began, time.Time{})
	for _, w := range a.Workers {
		for _, path := range [...]string{w.Stdout, w.Stderr, w.ErrorFile} {
			if info, err := os.Lstat(path); err == nil {
				a.span("files", began, info.ModTime())
			}
		}
	}
}

// span widens the time of the attempt.
func (a *Attempt) span(from string, started, ended time.Time) {
	if !started.IsZero() && (a.Started.IsZero() || started.Before(a.Started)) {
		a.Started, a.TimesFrom = started, from
	}
	if ended.After(a.Ended) {
		a.Ended, a.TimesFrom = ended, from
	}
}

// Last is the last attempt; nil if no workers were started.
func (run *Run) Last() *Attempt {
	if len(run.Attempts) == 0 {
		return nil
	}
	return &run.Attempts[len(run.Attempts)-1]
}

// sum says what follows from the attempts together.
func (run *Run) sum() {
	last := run.Last()
	if last == nil {
		run.Outcome, run.Started, run.Ended = outcome(run.agent), run.agent.Begin.Started, run.agent.End.Ended
		return
	}
	run.Restarts = last.Restart
	if run.agent != nil && run.agent.State == jobfile.Ended && last.TimesFrom == "files" {
		last.span("job", time.Time{}, run.agent.End.Ended)
	}
	for i := range run.Attempts {
		a := &run.Attempts[i]
		if run.Started.IsZero() || !a.Started.IsZero() && a.Started.Before(run.Started) {
			run.Started = a.Started
		}
		if a.Ended.After(run.Ended) {
			run.Ended = a.Ended
		}
		if a != last && a.Outcome == Unknown && len(a.Failures) == 0 && run.Attempts[i+1].Restart == a.Restart {
			a.Outcome = Renewed
		}
	}
	run.Outcome = last.Outcome
	if run.agent == nil || outcome(run.agent) == Unknown {
		return
	}
	run.Outcome = outcome(run.agent)
	if (run.agent.State == jobfile.Ended || run.Outcome == Running) && last.Outcome == Unknown {
		last.Outcome = run.Outcome
	}
}

func (run *Run) problem(format string, args ...any) {
	run.Problems = append(run.Problems, clean(fmt.Sprintf(format, args...)))
}

func (a *Attempt) problem(format string, args ...any) {
	if len(a.Problems) < 20 {
		a.Problems = append(a.Problems, clean(fmt.Sprintf(format, args...)))
	}
}

// present returns the path of a file if it is there, and is a regular one if that is wanted.
func present(dir, name string, regular bool) string {
	path := filepath.Join(dir, name)
	if info, err := os.Lstat(path); err != nil || regular && !info.Mode().IsRegular() {
		return ""
	}
	return path
}

// errBudget says that a run is too large to be read as a whole.
var errBudget = errors.New("not read: the files of the run are larger than " + strconv.Itoa(maxTotal>>20) +
	" MiB together")

// file reads a file whole. One that is larger than limit is an error. Errors do not
// name the file.
func (rd *reader) file(path string, limit int64) ([]byte, error) {
	f, info, err := safeopen.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := info.Size()
	if size > limit {
		return nil, fmt.Errorf("has %d bytes, more than the %d that are read", size, limit)
	}
	if rd.budget -= size; rd.budget < 0 {
		return nil, errBudget
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// end reads the last of a file, and says when that was written.
func (rd *reader) end(path string) ([]byte, time.Time, error) {
	f, info, err := safeopen.Open(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	n := min(info.Size(), tailBytes)
	if rd.budget -= n; rd.budget < 0 {
		return nil, time.Time{}, errBudget
	}
	text, err := io.ReadAll(io.NewSectionReader(f, info.Size()-n, n)) // less if it has become shorter
	if err != nil {
		return nil, time.Time{}, err
	}
	return text, info.ModTime(), nil
}

// KnowsRanks reports whether the global ranks of the workers are known.
func (a *Attempt) KnowsRanks() bool { return len(a.Workers) > 0 && a.Workers[0].Rank >= 0 }
