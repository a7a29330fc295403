package health

import (
	"cmp"
	"context"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/process/warm"
)

// StateVersion is the version of State's JSON. Fields may be added to a version;
// a field that is taken away or changes its meaning makes a new one.
const StateVersion = 2

// A Source knows the job. Its methods are called from any goroutine.
type Source interface {
	// Alive returns when the agent last made progress: now, if it is waiting for
	// something that it would notice. It returns at once.
	Alive() time.Time
	// State returns what is known at this moment; it may leave out the fields that the
	// server sets. The caller may read the State at any later time, and does not change
	// it. Calls come one at a time, at most one in Config.Refresh. ctx ends when the server
	// does; State then returns soon.
	State(ctx context.Context) *State
	// WriteMetrics writes Prometheus' text format. Calls come as those of State.
	WriteMetrics(w io.Writer) error
	// GPUs returns how busy this host's GPUs are; nil if that is not known. Only the first call waits for it.
	GPUs(wait time.Duration) []agent.GPU
}

// gpuWait is how long the first view waits for nvidia-smi.
const gpuWait = 500 * time.Millisecond

// A Phase is what one host's agent is doing: rendezvous, where it waits for the other
// hosts; assigning, while the hosts of the round exchange their ranks; running, as the
// workers do; restarting, while workers are being stopped and a new round follows; exit
// barrier, once this host's workers have succeeded and others' have not; ended.
type Phase string

const (
	inRendezvous Phase = "rendezvous"
	assigning    Phase = "assigning"
	running      Phase = "running"
	restarting   Phase = "restarting"
	exitBarrier  Phase = "exit barrier"
	ended        Phase = "ended"
)

// A State is a job as one host knows it: what it does itself, and where agents can call each
// other the workers and timers of all hosts. Durations are in seconds and sizes in bytes;
// times are RFC 3339, by the answering host's clock. What is not known is absent.
type State struct {
	Version int       `json:"version"`
	Time    time.Time `json:"time"` // when this was so
	Job     Job       `json:"job"`
	// Host is the one that the answering agent runs on, and Hosts all of the round,
	// in order of group rank. A Server shows at most 10000 of them, 1000 workers of a host
	// and 10000 of the job, and 100 failures.
	Host  Host   `json:"host"`
	Hosts []Host `json:"hosts,omitempty"`
	// Workers are in order of rank; with scope=host only those of this host.
	Workers []Worker `json:"workers,omitempty"`
	// LiveTimers is how many timers of these workers run.
	LiveTimers int `json:"live_timers"`
	// Timeline is what has happened, oldest first, the last 200 moments.
	Timeline []Moment `json:"timeline,omitempty"`
	// Failures are those of the last attempt that failed, the root cause first.
	Failures []Failure `json:"failures,omitempty"`
}

// What a State has at most; a server leaves out what a Source gives beyond that:
// of the timeline the oldest, of the rest the last.
const (
	maxTimeline   = 200
	maxHosts      = 10_000
	maxWorkers    = 1_000
	maxJobWorkers = 10_000
	maxFailures   = 100
)

// A Job is what all hosts share, as this one knows it.
type Job struct {
	RunID    string `json:"run_id"`
	Role     string `json:"role,omitempty"`
	Backend  string `json:"backend,omitempty"`  // c10d, etcd, quorum, static
	Endpoint string `json:"endpoint,omitempty"` // of the rendezvous
	// Entrypoint is what runs, as a person would name it.
	Entrypoint string    `json:"entrypoint,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	// State is the worker group's, as TorchElastic spells it: HEALTHY.
	State string `json:"state"`
	Phase Phase  `json:"phase"`
	// WaitingFor says what the phase waits for: "2 of 4 hosts have joined, 12 s left".
	WaitingFor  string `json:"waiting_for,omitempty"`
	Round       int    `json:"round"`
	Restarts    int    `json:"restarts"` // used
	MaxRestarts int    `json:"max_restarts"`
	MinHosts    int    `json:"min_hosts,omitempty"`
	MaxHosts    int    `json:"max_hosts,omitempty"`
	WorldSize   int    `json:"world_size,omitempty"` // workers of the round, on all hosts
	LogDir      string `json:"log_dir,omitempty"`
	// Preempted says who asked the whole job to stop; nil if nobody did. The State of
	// such a job ends as FAILED, as under TorchElastic, but it has not failed.
	Preempted *failure.Preemption `json:"preempted,omitempty"`
}

// Runs reports whether the workers of the answering host run as they should, which is what
// /readyz asks.
func (j *Job) Runs() bool { return j.Phase == running && j.State == "HEALTHY" }

// A Host is one node of the round.
type Host struct {
	Name string `json:"name,omitempty"`
	// GroupRank is the host's number in the round, and Workers how many run there.
	GroupRank int    `json:"group_rank"`
	Workers   int    `json:"workers,omitempty"`
	State     string `json:"state,omitempty"`
	// Warm is what warm starts cost this host; nil without --warm. Only Host of a State has it.
	Warm *warm.Stats `json:"warm,omitempty"`
	// Problem is why its workers are missing, or not as they are now: its agent is torchrun's.
	Problem string `json:"problem,omitempty"`
}

// A Worker is one local rank of a host.
type Worker struct {
	Host      string    `json:"host,omitempty"`
	GroupRank int       `json:"group_rank"`
	Rank      int       `json:"rank"`
	LocalRank int       `json:"local_rank"`
	PID       int       `json:"pid,omitempty"`
	State     string    `json:"state"`
	Started   time.Time `json:"started,omitzero"`
	Exit      *Exit     `json:"exit,omitempty"` // nil while it runs
	Usage     Usage     `json:"usage,omitzero"`
	// GPU is the one with the worker's local rank among those that the job may use, which is
	// what workers use by convention; nil where nvidia-smi tells nothing.
	GPU *agent.GPU `json:"gpu,omitempty"`
	// LastOutput is when the worker last wrote to its stdout or stderr. Where the
	// Source does not say, the server looks at its log files.
	LastOutput time.Time  `json:"last_output,omitzero"`
	Heartbeat  *Heartbeat `json:"heartbeat,omitempty"` // nil where there was none
	// Stdout and Stderr are the paths of its log files.
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	// StdoutLines and StderrLines are the last of what it wrote, without control
	// characters. Where the Source gives none, the server reads the files' ends.
	StdoutLines []string `json:"stdout_lines,omitempty"`
	StderrLines []string `json:"stderr_lines,omitempty"`
}

// An Exit is how a worker ended. One that a signal killed has the signal's
// negative number as its Code.
type Exit struct {
	Time   time.Time `json:"time,omitzero"`
	Code   int       `json:"code"`
	Signal string    `json:"signal,omitempty"` // SIGKILL
	// Cause is why, where more is known: "out of memory", "timer expired".
	Cause string `json:"cause,omitempty"`
}

// Usage is what a worker and its descendants use of the machine.
type Usage struct {
	// CPUSeconds since the worker's start, of user and system. Descendants that
	// have ended count once their parents know.
	CPUSeconds float64 `json:"cpu_seconds"`
	// CPUPercent of one CPU since the reading before; 800 is eight CPUs. It is 0 in
	// the first reading.
	CPUPercent float64 `json:"cpu_percent"`
	// RSSBytes of memory. What processes share counts for each of them, so that it
	// is too much where data loaders are forked.
	RSSBytes  int64 `json:"rss_bytes"`
	Processes int   `json:"processes,omitempty"`
	Threads   int   `json:"threads,omitempty"`
}

// A Heartbeat is what a worker last told of its progress.
type Heartbeat struct {
	Step int64     `json:"step"`
	Time time.Time `json:"time"`
	// StepsPerSecond of the last half minute to minute; 0 where that is not known, or the worker
	// says nothing any more.
	StepsPerSecond float64 `json:"steps_per_second,omitempty"`
}

// Pace is StepsPerSecond for people: "3.4/s"; "" where it is not known.
func (h *Heartbeat) Pace() string {
	switch r := h.StepsPerSecond; {
	case r <= 0:
		return ""
	case r > 1e6:
		return "> 1M/s"
	case r < 10:
		return strconv.FormatFloat(r, 'g', 2, 64) + "/s"
	default:
		return strconv.FormatFloat(r, 'f', 0, 64) + "/s"
	}
}

// The kinds of a Moment.
const (
	kindPhase   = "phase"   // the agent has come to another phase
	kindRound   = "round"   // a rendezvous is complete
	kindRestart = "restart" // a restart was counted
	kindFailure = "failure" // workers have failed, here or elsewhere
	kindHosts   = "hosts"   // hosts have come or gone, so that a new round begins
	kindLive    = "live"    // workers pause, or continue, as others are lost or come
	kindEnd     = "end"     // the job is over
)

// A Moment is something that has happened to the job.
type Moment struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"` // phase, round, restart, failure, hosts, live or end
	// Phase is the one that begins with it; empty if it continues.
	Phase    Phase  `json:"phase,omitempty"`
	Round    int    `json:"round"`
	Restarts int    `json:"restarts"`
	What     string `json:"what"`          // "restart 2 of 3"
	Why      string `json:"why,omitempty"` // "rank 3 was killed by SIGKILL (out of memory)"
	// Ranks is how many run from then on; 0 in moments after which not all do that are to.
	// Stayed of them have not been stopped before.
	Ranks  int `json:"ranks,omitempty"`
	Stayed int `json:"stayed,omitempty"`
}

// IsFailure reports whether workers have failed, IsRestart whether a restart was counted.
func (m *Moment) IsFailure() bool { return m.Kind == kindFailure }
func (m *Moment) IsRestart() bool { return m.Kind == kindRestart }

// A Failure is one worker's, in short: what report.json has of it without traceback
// and last lines.
type Failure struct {
	failure.ProcessFailure
	Time time.Time `json:"time,omitzero"` // FailedAt
	// Report is the file that has all failures, for the root cause, whose Message ends
	// with what the workers did, where they hung.
	Report string `json:"report,omitempty"`
}

// inShort is a failure as a State has it.
func inShort(f *failure.ProcessFailure) Failure {
	short := Failure{ProcessFailure: *f, Time: f.FailedAt}
	short.Traceback, short.TracebackFrom, short.LastLines, short.StderrTail, short.Collectives = "", "", nil, nil, nil
	return short
}

// shownLines is how many of a log's last lines a State has.
const shownLines = 8

// lastTime is the last one that JSON has a form for.
var lastTime = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// tidy returns a copy of s that can be shown: bounded, in order, without numbers
// and times that JSON has no form for, and with the ends of the workers' logs.
func tidy(s *State) *State {
	t := *s
	t.Version = StateVersion
	if t.Time.IsZero() {
		t.Time = time.Now()
	}
	if t.Job.Preempted != nil {
		p := *t.Job.Preempted
		fit(&p.Time)
		t.Job.Preempted = &p
	}
	t.Hosts = first(t.Hosts, maxHosts)
	t.Failures = first(t.Failures, maxFailures)
	t.Timeline = slices.Clone(t.Timeline[max(0, len(t.Timeline)-maxTimeline):])
	for i := range t.Timeline {
		fit(&t.Timeline[i].Time)
	}
	t.Workers = slices.Clone(first(t.Workers, maxWorkers))
	slices.SortStableFunc(t.Workers, func(a, b Worker) int { return cmp.Compare(a.LocalRank, b.LocalRank) })
	for i := range t.Workers {
		w := &t.Workers[i]
		w.Usage.CPUPercent, w.Usage.CPUSeconds = finite(w.Usage.CPUPercent), finite(w.Usage.CPUSeconds)
		if h := w.Heartbeat; h != nil {
			w.Heartbeat = &Heartbeat{h.Step, h.Time, finite(h.StepsPerSecond)}
		}
		if w.LastOutput.IsZero() {
			w.LastOutput = lastWrite(w.Stdout, w.Stderr)
		}
		w.StdoutLines = orEnd(w.StdoutLines, w.Stdout)
		if w.Stderr != w.Stdout {
			w.StderrLines = orEnd(w.StderrLines, w.Stderr)
		}
	}
	return &t
}

// clean makes all texts of another host's State as safe to show as this host's are.
func (s *State) clean() {
	for i := range s.Workers {
		for _, lines := range [][]string{s.Workers[i].StdoutLines, s.Workers[i].StderrLines} {
			for k, line := range lines {
				lines[k] = text.Line(line, maxLine)
			}
		}
	}
	text.Each(s, text.Lines)
}

// addGPUs adds how busy the GPUs of this host are, by local rank, to workers that run.
func (s *State) addGPUs(gpus []agent.GPU) {
	for i := range s.Workers {
		if w := &s.Workers[i]; w.Exit == nil && w.LocalRank >= 0 && w.LocalRank < len(gpus) {
			w.GPU = &gpus[w.LocalRank]
		}
	}
}

// orEnd returns lines, or the last ones of a file where there are none.
func orEnd(lines []string, path string) []string {
	if lines == nil && path != "" {
		lines, _ = endOf(path, shownLines) // a worker may not have written any
	}
	return lines
}

// lastWrite returns when something was last written to one of the files; zero if
// they are empty or not there.
func lastWrite(paths ...string) (last time.Time) {
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

func first[T any](list []T, n int) []T { return list[:min(n, len(list))] }

func finite(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return min(max(f, -math.MaxFloat64), math.MaxFloat64)
}

// fit moves a time into the years that JSON has a form for.
func fit(t *time.Time) {
	switch {
	case t.Year() > 9999:
		*t = lastTime
	case t.Year() < 0:
		*t = time.Time{}
	}
}
