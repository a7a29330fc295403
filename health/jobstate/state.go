// Package jobstate is a job's state as data: what one host knows of it, with what other hosts
// say. An Observer makes States of an agent's events; package health serves them as JSON, which
// Parse reads. Nothing here asks another host or serves anybody.
package jobstate

import (
	"strconv"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/process/warm"
)

// Version is that of State's JSON. Fields may be added to a version;
// a field that is taken away or changes its meaning makes a new one.
const Version = 2

// A Phase is what one host's agent is doing: rendezvous, where it waits for the other
// hosts; assigning, while the hosts of the round exchange their ranks; running, as the
// workers do; restarting, while workers are being stopped and a new round follows; exit
// barrier, once this host's workers have succeeded and others' have not; ended.
type Phase string

const (
	InRendezvous Phase = "rendezvous"
	Assigning    Phase = "assigning"
	Running      Phase = "running"
	Restarting   Phase = "restarting"
	ExitBarrier  Phase = "exit barrier"
	Ended        Phase = "ended"
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
func (j *Job) Runs() bool { return j.Phase == Running && j.State == "HEALTHY" }

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
	// LastOutput is when the worker last wrote to its stdout or stderr.
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
	KindPhase   = "phase"   // the agent has come to another phase
	KindRound   = "round"   // a rendezvous is complete
	KindRestart = "restart" // a restart was counted
	KindFailure = "failure" // workers have failed, here or elsewhere
	KindHosts   = "hosts"   // hosts have come or gone, so that a new round begins
	KindLive    = "live"    // workers pause, or continue, as others are lost or come
	KindEnd     = "end"     // the job is over
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

// A Failure is one worker's, in short: what report.json has of it without traceback
// and last lines.
type Failure struct {
	failure.ProcessFailure
	Time time.Time `json:"time,omitzero"` // FailedAt
	// Report is the file that has all failures, for the root cause, whose Message ends
	// with what the workers did, where they hung.
	Report string `json:"report,omitempty"`
}

// String says how the worker ended.
func (e *Exit) String() string {
	how := "exit status " + strconv.Itoa(e.Code)
	if e.Signal != "" {
		how = e.Signal
	}
	if e.Cause != "" {
		how += ", " + e.Cause
	}
	return how
}

// Worker returns the worker with a rank; nil if there is none.
func (s *State) Worker(rank int) *Worker {
	for i := range s.Workers {
		if s.Workers[i].Rank == rank {
			return &s.Workers[i]
		}
	}
	return nil
}
