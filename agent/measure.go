package agent

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// measures is what the metrics need to remember. It belongs to the goroutine of Run.
type measures struct {
	joining    time.Time // when this host began to join the round
	restarting time.Time // when it was clear that another round is due; zero in the first
	state      State     // the last that was published
}

// measureTurn publishes what has happened to the group. Where torchrun looks at
// its workers ten times a second and publishes what it sees each time, this agent
// does so when there is something new; looking takes no time.
func (a *Agent) measureTurn(at *attempt, n news, state State, act action, left int) {
	if a.measures.state != state {
		a.measures.state = state
		a.metrics.State(string(state))
	}
	if seen := sees(n.ev, at.phase); seen != "" {
		a.metrics.Took(metrics.MonitorWorkers, 0, nil)
		a.metrics.Tick(a.cfg.Spec.Role, left, string(seen))
	}
	now := time.Now()
	began := now
	switch n.ev {
	case evFailed, evLostPeers, evUnhealthy:
		var last time.Time
		if began, last = span(at.exits); !began.IsZero() {
			a.metrics.Took(metrics.StopWorkers, last.Sub(began), nil)
		}
	case evNodesWaiting, evNodeGone, evEvicted, evClosed, evClosedWhenDone, evDoneNodeGone, evDisconnected:
		a.recordRdzv(events.RdzvEvent{Name: "rendezvous.Changes", Message: changeText(n.change), NodeState: events.NodeRunning})
	}
	if again := act == actRestart || act == actFollow || act == actRejoin; again && a.measures.restarting.IsZero() {
		a.measures.restarting = began
	}
	if act == actRejoin {
		a.metrics.Rejoined()
	}
}

// sees is the state of the workers that a look at them finds; "" where there is
// nothing to look at.
func sees(ev event, ph phase) State {
	switch ev {
	case evStarted:
		return Healthy
	case evSucceeded:
		return Succeeded
	case evFailed, evLostPeers:
		return Failed
	case evUnhealthy:
		return Unhealthy
	}
	if ev.isChange() && ph == running {
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

// measureStarted publishes that the workers were started, or were not.
func (a *Agent) measureStarted(at *attempt, err error) {
	a.metrics.Round(at.round.Round, at.round.WorldSize, at.ranks.WorldSize)
	a.metrics.Restarts(a.restarts)
	a.metrics.Step(metrics.StartWorkers, at.began, err)
	a.measureInitialized(err)
}

// measureInitialized publishes the end of what began when this host joined the
// round, and of the restart that it may have been part of.
func (a *Agent) measureInitialized(err error) {
	a.metrics.Step(metrics.InitializeWorkers, a.measures.joining, err)
	if !a.measures.restarting.IsZero() {
		a.metrics.Step(metrics.RestartWorkers, a.measures.restarting, err)
		a.measures.restarting = time.Time{}
	}
}

// measureEnds publishes how the workers of an attempt ended. Its goroutines have.
func (a *Agent) measureEnds(at *attempt) {
	for i, x := range at.exits {
		a.metrics.Exited(exitCause(x, at.missedBy(i)))
	}
}

// exitCause says why a worker ended; missed is the deadline that it was killed for.
func exitCause(x process.Exit, missed string) failure.Cause {
	f := failure.ProcessFailure{Observation: x.Observation()}
	f.Abandoned, f.TimerExpired = cmp.Or(x.Abandoned, x.Uninterruptible), missed
	switch {
	case x.PID == 0:
		return failure.CauseNotStarted
	case x.StoppedBy != 0:
		f.Kind = failure.Stopped
	case x.Code == 0:
		return failure.CauseSuccess
	}
	return f.Class()
}

// recordJoining records that this host is about to join a round.
func (a *Agent) recordJoining(now time.Time) {
	a.measures.joining = now
	e := events.RdzvEvent{Name: "rendezvous.Next", Message: "joins the next round", NodeState: events.NodeInit, Time: now}
	if a.last != nil {
		e.NodeState = events.NodeRunning
	}
	a.recordRdzv(e)
}

// recordJoined records that it has joined one, or could not.
func (a *Agent) recordJoined(at *attempt, err error) {
	e := events.RdzvEvent{Name: "rendezvous.Next", NodeState: events.NodeRunning}
	if err != nil {
		e.NodeState, e.Message, e.ErrorTrace = events.NodeFailed, "could not join a round", err.Error()
	} else {
		r := at.round
		e.Message = fmt.Sprintf("joined round %d as node %d of %d", r.Round, r.Rank, r.WorldSize)
		e.Rank, e.MasterEndpoint = &r.Rank, net.JoinHostPort(r.MasterAddr, strconv.Itoa(r.MasterPort))
	}
	a.recordRdzv(e)
}

// recordRdzv records a step of the rendezvous.
func (a *Agent) recordRdzv(e events.RdzvEvent) {
	e.RunID, e.Hostname, e.PID = a.cfg.Rendezvous.RunID(), a.cfg.Host, os.Getpid()
	events.RecordLine(a.cfg.Events, e)
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
