// Package events tells machines what happened to a job: one Event for each
// rendezvous, each start and each end of a worker, and the end of the agent,
// handed to a Sink. The console sink prints them as torchrun does, one line of
// JSON each.
//
// Source: torch/distributed/elastic/events.
package events

import (
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

// A State is the state that an event reports, as torch spells it.
type State string

// The states of events.
// Source: the calls of _construct_event in elastic/agent/server/api.py.
const (
	Rendezvous        State = "RENDEZVOUS"
	AssignWorkerRanks State = "ASSIGN_WORKER_RANKS"
	Start             State = "START"
	Succeeded         State = "SUCCEEDED"
	Failed            State = "FAILED"
	Terminated        State = "TERMINATED"
	Running           State = "RUNNING"
)

// A Source is who an event is about.
type Source string

// The sources of events.
const (
	Agent  Source = "AGENT"
	Worker Source = "WORKER"
)

// An Event is one thing that happened. Pointers are null in the output where
// nil.
// Source: Event in elastic/events/api.py.
type Event struct {
	// Name defaults to "torchelastic.worker.status.<State>".
	Name   string
	Source Source
	// Time is when it happened; default: now. It is printed as whole
	// milliseconds since 1970, the unit that torch documents (and never fills in).
	Time time.Time

	RunID       string
	GlobalRank  *int // of the worker
	GroupRank   *int // of this agent; nil before the first rendezvous is complete
	PID         int  // of the worker; 0 is printed as null
	Role        string
	Hostname    string
	State       State
	RunTime     time.Duration // how long the run took; 0 until it has ended
	RdzvBackend string
	RawError    string        // JSON or text; "" is null
	Restarts    int           // used so far
	Duration    time.Duration // of the step that the event reports; 0 is null

	// The rest goes into the inner metadata, a string of JSON.
	GroupWorldSize *int   // agents in the round; nil before the first rendezvous is complete
	EntryPoint     string // base name of the program
	// The worker's, left out for events of the agent.
	LocalRank, RoleRank, RoleWorldSize int
	ExitCode                           *int // of a failed worker

	// Inner replaces the inner metadata, for events with their own. Such events
	// have no duration.
	Inner []Field
}

// A Field is one value of the inner metadata.
type Field struct {
	Key   string
	Value any // string, bool, int, int64, float64 or nil
}

// A Sink takes events. Record does not keep the agent waiting and may be called
// concurrently.
type Sink interface {
	Record(Event)
}

type null struct{}

func (null) Record(Event) {}

// Null is a sink that drops everything.
var Null Sink = null{}

// Console is a sink that prints each event as one line of JSON to w, with one
// Write.
func Console(w io.Writer) Sink { return &console{w: w} }

type console struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

func (c *console) Record(e Event) {
	line := append(e.Append(nil), '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Write(line) // a console that is gone is no reason to stop a job
}

// Append appends the event as one JSON object in Python's spelling, without a
// newline.
// Source: Event.serialize.
func (e Event) Append(dst []byte) []byte {
	at, name := e.Time, e.Name
	if at.IsZero() {
		at = time.Now()
	}
	if name == "" {
		name = "torchelastic.worker.status." + string(e.State)
	}
	worker := pyjson.Value{}
	if e.PID != 0 {
		worker = pyjson.Str(strconv.Itoa(e.PID))
	}
	metadata := pyjson.Dict(
		member("run_id", pyjson.Str(e.RunID)),
		member("global_rank", number(e.GlobalRank)),
		member("group_rank", number(e.GroupRank)),
		member("worker_id", worker),
		member("role", pyjson.Str(e.Role)),
		member("hostname", pyjson.Str(e.Hostname)),
		member("state", pyjson.Str(string(e.State))),
		member("total_run_time", pyjson.Int(int64(e.RunTime/time.Second))),
		member("rdzv_backend", pyjson.Str(e.RdzvBackend)),
		member("raw_error", text(e.RawError)),
		member("metadata", pyjson.Str(e.inner().String())),
		member("agent_restarts", pyjson.Int(int64(e.Restarts))),
	)
	if e.Inner == nil {
		duration := pyjson.Value{}
		if e.Duration != 0 {
			duration = pyjson.Float(float64(e.Duration) / float64(time.Millisecond))
		}
		metadata.Members = append(metadata.Members, member("duration_ms", duration))
	}
	return pyjson.Dict(
		member("name", pyjson.Str(name)),
		member("source", pyjson.Str(string(e.Source))),
		member("timestamp", pyjson.Int(at.UnixMilli())),
		member("metadata", metadata),
	).Append(dst)
}

// inner is the metadata within the metadata, which torch keeps as a string.
func (e *Event) inner() pyjson.Value {
	v := pyjson.Dict()
	if e.Inner != nil {
		for _, f := range e.Inner {
			v.Members = append(v.Members, member(f.Key, anyValue(f.Value)))
		}
		return v
	}
	v.Members = append(v.Members,
		member("group_world_size", number(e.GroupWorldSize)),
		member("entry_point", pyjson.Str(e.EntryPoint)))
	if e.Source != Worker {
		return v
	}
	pid := pyjson.Value{}
	if e.ExitCode != nil {
		pid = pyjson.Int(int64(e.PID))
	}
	v.Members = append(v.Members,
		member("local_rank", pyjson.Int(int64(e.LocalRank))),
		member("role_rank", pyjson.Int(int64(e.RoleRank))),
		member("role_world_size", pyjson.Int(int64(e.RoleWorldSize))),
		member("exit_code", number(e.ExitCode)),
		member("worker_pid", pid))
	return v
}

func member(key string, v pyjson.Value) pyjson.Member { return pyjson.Member{Key: key, Value: v} }

func number(n *int) pyjson.Value {
	if n == nil {
		return pyjson.Value{}
	}
	return pyjson.Int(int64(*n))
}

func text(s string) pyjson.Value {
	if s == "" {
		return pyjson.Value{}
	}
	return pyjson.Str(s)
}

func anyValue(v any) pyjson.Value {
	switch v := v.(type) {
	case nil:
		return pyjson.Value{}
	case string:
		return pyjson.Str(v)
	case bool:
		return pyjson.True(v)
	case int:
		return pyjson.Int(int64(v))
	case int64:
		return pyjson.Int(v)
	case float64:
		return pyjson.Float(v)
	}
	return pyjson.Str(fmt.Sprint(v))
}

// Names of New.
// Source: get_logging_handler in elastic/events/handlers.py.
const (
	NameNull              = "null"
	NameConsole           = "console"
	NameDynamicRendezvous = "dynamic_rendezvous" // torch's own name for one more null
)

// New returns the sink that --event-log-handler names: NameNull (also ""),
// NameConsole, which prints to w, or NameDynamicRendezvous. The error for
// others is an *UnknownError.
func New(name string, w io.Writer) (Sink, error) {
	switch name {
	case "", NameNull, NameDynamicRendezvous:
		return Null, nil
	case NameConsole:
		return Console(w), nil
	}
	return nil, &UnknownError{Name: name}
}

// An UnknownError is New's error for a name that is not built in.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("event log handler %q is not known: use console (JSON lines on stderr), null or dynamic_rendezvous (both print nothing); "+
		"handlers written in Python cannot be loaded, let them read the console's lines", e.Name)
}
