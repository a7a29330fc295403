package agent

import (
	"cmp"
	"fmt"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// emitDecided emits what has happened to the group and what follows. torchrun looks at its
// workers ten times a second and records each look; this agent records one where it knows
// something new of them (sees).
func (a *Agent) emitDecided(at *attempt, n news, state State, act decide.Action) {
	d := Decided{
		State: state, Seen: sees(n.ev, at.status.phase), Since: time.Now(), Rejoining: act == decide.ActRejoin,
		Again: act == decide.ActRestart || act == decide.ActFollow || act == decide.ActRejoin,
	}
	if n.change.Kind != 0 && n.ev != decide.EvBarrierTimedOut {
		d.Change = changeText(n.change)
	}
	var stopped *WorkersStopped
	if n.ev == decide.EvFailed || n.ev == decide.EvLostPeers || n.ev == decide.EvUnhealthy {
		first, last := span(at.outcome.exits)
		if d.Since = first; !first.IsZero() {
			stopped = &WorkersStopped{last.Sub(first)}
		}
	}
	if d.Again || state != a.state || d.Seen != "" || d.Change != "" {
		a.emit(at, d)
	}
	a.state = state
	if stopped != nil {
		a.emit(at, *stopped)
	}
}

// sees is the state of the workers that a look at them finds; "" where there is
// nothing to look at.
func sees(ev decide.Event, ph decide.Phase) State {
	switch ev {
	case decide.EvStarted:
		return Healthy
	case decide.EvSucceeded:
		return Succeeded
	case decide.EvFailed, decide.EvLostPeers:
		return Failed
	case decide.EvUnhealthy:
		return Unhealthy
	}
	if (ev.IsChange() || ev == decide.EvAsked) && ph == decide.Running {
		return Healthy
	}
	return ""
}

// span returns when the first worker failed and when the last one ended.
func span(exits map[int]process.Exit) (first, last time.Time) {
	for _, x := range exits {
		if x.Code != 0 && (first.IsZero() || x.Time.Before(first)) {
			first = x.Time
		}
		if x.Time.After(last) {
			last = x.Time
		}
	}
	return first, last
}

// causes returns why each worker of an attempt ended. The attempt's goroutines have
// ended before, so that nothing changes any more.
func (at *attempt) causes() []failure.Cause {
	var causes []failure.Cause
	for i, x := range at.outcome.exits {
		causes = append(causes, exitCause(x, at.evidence.Deadline(i)))
	}
	return causes
}

// exitCause says why a worker ended; missed is the deadline that it was killed for.
func exitCause(x process.Exit, missed string) failure.Cause {
	switch {
	case x.PID == 0:
		return failure.CauseNotStarted
	case x.Code == 0 && x.StoppedBy == 0:
		return failure.CauseSuccess
	}
	f := failure.ProcessFailure{Observation: x.Observation()}
	f.Abandoned, f.TimerExpired = cmp.Or(x.Abandoned, x.Uninterruptible), missed
	return f.Class()
}

// changeText is a change in words: "node lost: host2_41_0 (node 1)".
func changeText(c rendezvous.Change) string {
	text := c.Kind.String()
	if c.Node != "" {
		text += ": " + c.Node
	}
	if c.Rank >= 0 {
		text += fmt.Sprintf(" (node %d)", c.Rank)
	}
	if c.Err != nil {
		text += ": " + c.Err.Error()
	}
	return text
}
