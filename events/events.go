// Package events tells machines what happened to a job: one Event for each
// rendezvous, each start and each end of a worker, what the watchdog did, and the
// end of the agent, handed to a Sink. The console sink prints them as torchrun
// does, one line of JSON each; the file sink appends such lines to a file, along
// with a RdzvEvent for each step of the rendezvous, an AttemptEvent for each
// attempt that failed, and a PreemptedEvent if the whole job was told to stop.
//
// Source: torch/distributed/elastic/events.
package events

import (
	"fmt"
	"strconv"
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

// Append appends the event as one JSON object in Python's spelling, without a
// newline.
// Source: Event.serialize.
func (e Event) Append(dst []byte) []byte {
	name := e.Name
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
		member("timestamp", pyjson.Int(milliseconds(e.Time))),
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
