package events

import (
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

// Preempted is the name of a PreemptedEvent.
const Preempted = "muster.job.preempted"

// A PreemptedEvent says on each host of a job that the whole job was told to stop,
// and by whom. It is muster's own: torch's last event of the agent is FAILED then as
// for a job that has failed.
type PreemptedEvent struct {
	// Time is when the agent knew; default: now. It is printed in milliseconds.
	Time                  time.Time
	RunID, Hostname, Role string
	GroupRank             *int // nil outside a round
	Restarts              int  // used
	// Host is the one that got Signal, a name such as SIGTERM, and SignalTime when, by
	// the clock of Hostname.
	Host, Signal string
	SignalTime   time.Time
}

// Append appends the event as one JSON object, without a newline.
func (e PreemptedEvent) Append(dst []byte) []byte {
	at := e.Time
	if at.IsZero() {
		at = time.Now()
	}
	return pyjson.Dict(
		member("name", pyjson.Str(Preempted)),
		member("source", pyjson.Str(string(Agent))),
		member("timestamp", pyjson.Int(at.UnixMilli())),
		member("metadata", pyjson.Dict(
			member("run_id", pyjson.Str(e.RunID)),
			member("group_rank", number(e.GroupRank)),
			member("role", pyjson.Str(e.Role)),
			member("hostname", pyjson.Str(e.Hostname)),
			member("agent_restarts", pyjson.Int(int64(e.Restarts))),
			member("signalled_host", pyjson.Str(e.Host)),
			member("signal", pyjson.Str(e.Signal)),
			member("signal_time", pyjson.Int(e.SignalTime.UnixMilli())),
		)),
	).Append(dst)
}
