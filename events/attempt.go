package events

import (
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

// AttemptFailed is the name of an AttemptEvent.
const AttemptFailed = "muster.attempt.failed"

// An AttemptEvent says how an attempt of a job failed on a host, whether another one
// follows or not: which worker was the first to fail, or which host was lost. It is
// muster's own; torch has no event for a worker that is started again. Its lines
// have the values of the metadata that an Event's have, too, under the same names.
type AttemptEvent struct {
	// Time is when the agent knew; default: now. It is printed in milliseconds.
	Time      time.Time
	RunID     string
	Hostname  string // of the agent
	Host      string // that failed: Hostname, or a host that was lost
	Role      string
	GroupRank int
	// Rank, LocalRank and PID are the worker's; Rank is -1 where a host was lost.
	Rank, LocalRank, PID int
	// Restarts is how many the job had used, MaxRestarts how many it has.
	Restarts, MaxRestarts int
	// ExitCode is 0..255, or -N for signal N, whose name is Signal.
	ExitCode int
	Signal   string
	// Cause is one word, as the rules of package policy have it; Message is a line.
	Cause, Message string
	Ran            time.Duration // of the workers
	Stderr         string        // the end of the worker's
	// Step is the furthest of the host's workers' heartbeats, and Files what is known
	// of the files that show progress.
	Step  int64
	Files string
	// Action is what follows, and Decision says by which rule; empty without a policy.
	Action, Decision string
}

// Append appends the event as one JSON object, without a newline. What is not known
// is null.
func (e AttemptEvent) Append(dst []byte) []byte {
	at := e.Time
	if at.IsZero() {
		at = time.Now()
	}
	rank := pyjson.Value{}
	if e.Rank >= 0 {
		rank = pyjson.Int(int64(e.Rank))
	}
	return pyjson.Dict(
		member("name", pyjson.Str(AttemptFailed)),
		member("source", pyjson.Str(string(Agent))),
		member("timestamp", pyjson.Int(at.UnixMilli())),
		member("metadata", pyjson.Dict(
			member("run_id", pyjson.Str(e.RunID)),
			member("global_rank", rank),
			member("local_rank", pyjson.Int(int64(e.LocalRank))),
			member("group_rank", pyjson.Int(int64(e.GroupRank))),
			member("worker_pid", pyjson.Int(int64(e.PID))),
			member("role", pyjson.Str(e.Role)),
			member("hostname", pyjson.Str(e.Hostname)),
			member("failed_host", pyjson.Str(e.Host)),
			member("agent_restarts", pyjson.Int(int64(e.Restarts))),
			member("max_restarts", pyjson.Int(int64(e.MaxRestarts))),
			member("cause", pyjson.Str(e.Cause)),
			member("exit_code", pyjson.Int(int64(e.ExitCode))),
			member("signal", text(e.Signal)),
			member("message", text(e.Message)),
			member("ran_ms", pyjson.Int(e.Ran.Milliseconds())),
			member("stderr", text(e.Stderr)),
			member("step", pyjson.Int(e.Step)),
			member("files", text(e.Files)),
			member("action", text(e.Action)),
			member("decision", text(e.Decision)),
		)),
	).Append(dst)
}
