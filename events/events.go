// Package events tells machines what happened to a job: one Event for each
// rendezvous, each start and each end of a worker, what the watchdog did, and the
// end of the agent, as TorchElastic has them, along with lines of muster's own: a
// RdzvEvent for each step of the rendezvous, an AttemptEvent for each attempt that
// failed, and a PreemptedEvent if the whole job was told to stop.
//
// An Observer makes them of what an agent does and hands them to a Sink: to the Recorder
// that Open makes, which prints and files them as JSON, or to one of the caller's own.
//
// Source: torch/distributed/elastic/events.
package events

import (
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/format/pyjson"
)

// A Sink takes events. Record does not keep the agent waiting and may be called
// concurrently.
type Sink interface {
	Record(Line)
}

// A Line is an Event, which torchrun would have too, or one of muster's own: RdzvEvent,
// AttemptEvent, PreemptedEvent. A Sink tells them apart by their types.
type Line interface {
	// Append appends the event as one JSON object, without a newline.
	Append(dst []byte) []byte
}

// An Event is one thing that happened, as torch records it. Pointers are null in the
// output where nil.
// Source: Event in elastic/events/api.py.
type Event struct {
	// State is RENDEZVOUS, ASSIGN_WORKER_RANKS, RUNNING (the watchdog's), SUCCEEDED or
	// FAILED for the agent, and START, SUCCEEDED, FAILED or TERMINATED for a worker.
	// Source: the calls of _construct_event in elastic/agent/server/api.py.
	State string
	// Time is when it happened; default: now. It is printed as whole
	// milliseconds since 1970, the unit that torch documents (and never fills in).
	Time time.Time

	// The agent and its place in the round, which is nil before the first rendezvous.
	RunID, Role, Hostname     string
	RdzvBackend               string
	EntryPoint                string // base name of the program
	GroupRank, GroupWorldSize *int
	Restarts                  int // used so far

	// Worker is who the event is about; nil for the agent.
	Worker *Worker
	// Watchdog is what the watchdog did; nil for all other events.
	Watchdog *agent.Watchdog

	RunTime  time.Duration // how long the run took; 0 until it has ended
	Duration time.Duration // of the step that the event reports; 0 is null
	RawError string        // JSON or text; "" is null
}

// A Worker is who an Event is about.
type Worker struct {
	PID, Rank, LocalRank    int
	RoleRank, RoleWorldSize int
	ExitCode                *int // of one that failed
}

// Source is who the event is about, as torch says it: AGENT or WORKER.
func (e Event) Source() string {
	if e.Worker != nil {
		return "WORKER"
	}
	return "AGENT"
}

// Name is torch's, which for an event of the watchdog is one of package timer's.
func (e Event) Name() string {
	if e.Watchdog != nil {
		return e.Watchdog.Name
	}
	return "torchelastic.worker.status." + e.State
}

// metadata is what Python has within an Event, in its order.
type metadata struct {
	RunID      string `json:"run_id"`
	GlobalRank *int   `json:"global_rank,omitempty"`
	GroupRank  *int   `json:"group_rank,omitempty"`
	WorkerID   string `json:"worker_id,omitempty"`
	Role       string `json:"role"`
	Hostname   string `json:"hostname"`
	State      string `json:"state"`
	RunTime    int64  `json:"total_run_time"` // whole seconds
	Backend    string `json:"rdzv_backend"`
	RawError   string `json:"raw_error,omitempty"`
	Metadata   string `json:"metadata"` // JSON once more
	Restarts   int    `json:"agent_restarts"`
}

// timed is that of all events but the watchdog's.
type timed struct {
	metadata
	Duration float64 `json:"duration_ms,omitempty"`
}

// The types below are what torch has as a string of JSON within the metadata.

type agentMetadata struct {
	WorldSize  *int   `json:"group_world_size,omitempty"`
	EntryPoint string `json:"entry_point"`
}

type workerMetadata struct {
	agentMetadata
	LocalRank int  `json:"local_rank"`
	RoleRank  int  `json:"role_rank"`
	RoleWorld int  `json:"role_world_size"`
	ExitCode  *int `json:"exit_code,omitempty"`
	PID       *int `json:"worker_pid,omitempty"` // of one that failed
}

type watchdogMetadata struct {
	Event string `json:"watchdog_event"`
}

type timerMetadata struct {
	watchdogMetadata
	PID        string `json:"worker_pid"`
	ScopeID    string `json:"scope_id"`
	Expiration string `json:"expiration_time"`
	Signal     string `json:"signal"`
}

// Append appends the event as one JSON object in Python's spelling, without a
// newline.
// Source: Event.serialize.
func (e Event) Append(dst []byte) []byte {
	m := metadata{
		RunID: e.RunID, GroupRank: e.GroupRank, Role: e.Role, Hostname: e.Hostname, State: e.State,
		RunTime: int64(e.RunTime / time.Second),
		Backend: e.RdzvBackend, RawError: e.RawError, Restarts: e.Restarts,
	}
	if w := e.Worker; w != nil {
		m.GlobalRank = &w.Rank
		if w.PID != 0 {
			m.WorkerID = strconv.Itoa(w.PID)
		}
	}
	m.Metadata = string(pyjson.AppendStruct(nil, e.inner()))
	if e.Watchdog != nil {
		return appendLine(dst, e.Name(), e.Source(), e.Time, m)
	}
	return appendLine(dst, e.Name(), e.Source(), e.Time, timed{m, float64(e.Duration) / float64(time.Millisecond)})
}

// inner is the metadata within the metadata.
// Source: LocalElasticAgent._log_watchdog_event for that of the watchdog.
func (e *Event) inner() any {
	if w := e.Watchdog; w != nil {
		of, r := watchdogMetadata{w.Name}, w.Request
		if r == nil { // the watchdog starts or ends
			return of
		}
		return timerMetadata{of, strconv.Itoa(r.PID), r.ScopeID, repr(r.Seconds()), strconv.Itoa(int(r.Signal))}
	}
	of, w := agentMetadata{e.GroupWorldSize, e.EntryPoint}, e.Worker
	if w == nil {
		return of
	}
	m := workerMetadata{of, w.LocalRank, w.RoleRank, w.RoleWorldSize, w.ExitCode, nil}
	if w.ExitCode != nil {
		m.PID = &w.PID
	}
	return m
}

// repr is how Python's str prints a float.
func repr(f float64) string {
	return strings.NewReplacer("NaN", "nan", "Infinity", "inf").Replace(pyjson.Float(f).Text)
}

// appendLine appends what most events have in common.
func appendLine(dst []byte, name, source string, at time.Time, metadata any) []byte {
	if at.IsZero() {
		at = time.Now()
	}
	return pyjson.AppendStruct(dst, struct {
		Name     string `json:"name"`
		Source   string `json:"source"`
		Time     int64  `json:"timestamp"`
		Metadata any    `json:"metadata"`
	}{name, source, at.UnixMilli(), metadata})
}
