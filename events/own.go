package events

import (
	"os"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/pyjson"
)

// Names of muster's own events, as the lines of a file have them.
const (
	AttemptFailed = "muster.attempt.failed" // of an AttemptEvent
	Preempted     = "muster.job.preempted"  // of a PreemptedEvent
)

// An AttemptEvent says how an attempt of a job failed on a host, whether another one
// follows or not: which worker was the first to fail, or which host was lost. torch has
// no event for a worker that is started again. Its fields are the metadata, in which
// what an Event has, too, has the same name. What is not known is null.
type AttemptEvent struct {
	Time  time.Time `json:"-"` // when the agent knew; default: now
	RunID string    `json:"run_id"`
	// Rank, LocalRank and PID are the worker's; Rank is nil where a host was lost.
	Rank      *int   `json:"global_rank,omitempty"`
	LocalRank int    `json:"local_rank"`
	GroupRank int    `json:"group_rank"`
	PID       int    `json:"worker_pid"`
	Role      string `json:"role"`
	Hostname  string `json:"hostname"`    // of the agent
	Host      string `json:"failed_host"` // Hostname, or a host that was lost
	// Restarts is how many the job had used, MaxRestarts how many it has.
	Restarts    int           `json:"agent_restarts"`
	MaxRestarts int           `json:"max_restarts"`
	Cause       failure.Cause `json:"cause"`
	// ExitCode is 0..255, or -N for Signal N.
	ExitCode int            `json:"exit_code"`
	Signal   failure.Signal `json:"signal,omitzero"`
	Message  string         `json:"message,omitempty"` // the cause in a line
	Ran      int64          `json:"ran_ms"`            // of the workers, in milliseconds
	Stderr   string         `json:"stderr,omitempty"`  // the end of the worker's
	Progress
	// Action is what follows, and Decision says by which rule; empty without a policy.
	Action   string `json:"action,omitempty"`
	Decision string `json:"decision,omitempty"`
}

// Progress is how far the workers of a host had come: the furthest step that a heartbeat
// told of, and what is known of the files that show progress.
type Progress struct {
	Step  int64  `json:"step"`
	Files string `json:"files,omitempty"`
}

// Append appends the event as one JSON object, without a newline.
func (e AttemptEvent) Append(dst []byte) []byte {
	return appendLine(dst, AttemptFailed, "AGENT", e.Time, e)
}

// A PreemptedEvent says on each host of a job that the whole job was told to stop,
// and by whom. torch's last event of the agent is FAILED then as for a job that has
// failed.
type PreemptedEvent struct {
	Time      time.Time `json:"-"` // when the agent knew; default: now
	RunID     string    `json:"run_id"`
	GroupRank *int      `json:"group_rank,omitempty"` // nil outside a round
	Role      string    `json:"role"`
	Hostname  string    `json:"hostname"`
	Restarts  int       `json:"agent_restarts"` // used
	// Host is the one that got Signal, and SignalTime when, by the clock of Hostname, in
	// milliseconds since 1970.
	Host       string         `json:"signalled_host"`
	Signal     failure.Signal `json:"signal"`
	SignalTime int64          `json:"signal_time"`
}

// Append appends the event as one JSON object, without a newline.
func (e PreemptedEvent) Append(dst []byte) []byte {
	return appendLine(dst, Preempted, "AGENT", e.Time, e)
}

// A RdzvEvent is a step of the rendezvous. Its lines have "node_state", which
// those of an Event have not.
// Source: RdzvEvent in elastic/events/api.py.
type RdzvEvent struct {
	Name           string `json:"name"` // what is done, such as "rendezvous.Next"
	RunID          string `json:"run_id"`
	Message        string `json:"message"`
	Hostname       string `json:"hostname"`
	PID            int    `json:"pid"`        // of the agent
	NodeState      string `json:"node_state"` // INIT, RUNNING, SUCCEEDED or FAILED, as torch's
	MasterEndpoint string `json:"master_endpoint"`
	Rank           *int   `json:"rank,omitempty"`     // of the node in the round; nil where it has none
	LocalID        *int   `json:"local_id,omitempty"` // of several nodes in one process
	ErrorTrace     string `json:"error_trace"`
	// Time is when it happened, in milliseconds since 1970; default: now. torch's type
	// has no time.
	Time int64 `json:"timestamp"`
}

// Append appends the event as one JSON object in Python's spelling, without a newline.
// Source: RdzvEvent.serialize.
func (e RdzvEvent) Append(dst []byte) []byte {
	if e.Time == 0 {
		e.Time = time.Now().UnixMilli()
	}
	return pyjson.AppendStruct(dst, e)
}

// EndEvent says that this host has closed the rendezvous or has left it, or why it could do
// neither.
func EndEvent(runID, host string, closed bool, err error) RdzvEvent {
	e := RdzvEvent{Name: "rendezvous.Leave", RunID: runID, Hostname: host, PID: os.Getpid(), NodeState: "SUCCEEDED",
		Message: "has left the rendezvous"}
	if closed {
		e.Name, e.Message = "rendezvous.Shutdown", "has closed the rendezvous"
	}
	if err != nil {
		e.NodeState, e.Message, e.ErrorTrace = "FAILED", "could not say that it leaves the rendezvous", err.Error()
	}
	return e
}
