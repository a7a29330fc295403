package events

import (
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

// A NodeState is what a node is to the rendezvous.
// Source: NodeState in elastic/events/api.py.
type NodeState string

// The states of a node.
const (
	NodeInit      NodeState = "INIT"
	NodeRunning   NodeState = "RUNNING"
	NodeSucceeded NodeState = "SUCCEEDED"
	NodeFailed    NodeState = "FAILED"
)

// A RdzvEvent is a step of the rendezvous. Its lines have "node_state", which
// those of an Event have not.
// Source: RdzvEvent in elastic/events/api.py.
type RdzvEvent struct {
	Name           string // what is done, such as "rendezvous.Next"
	RunID          string
	Message        string
	Hostname       string
	PID            int // of the agent
	NodeState      NodeState
	MasterEndpoint string
	Rank           *int // of the node in the round; nil where it has none
	LocalID        *int // of several nodes in one process; nil is printed as null
	ErrorTrace     string
	// Time is when it happened; default: now. It is printed last, as "timestamp" in
	// milliseconds since 1970; torch's type has no time.
	Time time.Time
}

// Append appends the event as one JSON object in Python's spelling, without a
// newline.
// Source: RdzvEvent.serialize.
func (e RdzvEvent) Append(dst []byte) []byte {
	at := e.Time
	if at.IsZero() {
		at = time.Now()
	}
	return pyjson.Dict(
		member("name", pyjson.Str(e.Name)),
		member("run_id", pyjson.Str(e.RunID)),
		member("message", pyjson.Str(e.Message)),
		member("hostname", pyjson.Str(e.Hostname)),
		member("pid", pyjson.Int(int64(e.PID))),
		member("node_state", pyjson.Str(string(e.NodeState))),
		member("master_endpoint", pyjson.Str(e.MasterEndpoint)),
		member("rank", number(e.Rank)),
		member("local_id", number(e.LocalID)),
		member("error_trace", pyjson.Str(e.ErrorTrace)),
		member("timestamp", pyjson.Int(at.UnixMilli())),
	).Append(dst)
}
