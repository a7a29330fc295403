package events

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/rendezvous"
)

// Observer records in a sink what an agent does, for agent.Config.Observers: the events
// of TorchElastic's agent, and muster's own.
// Source: the calls of _construct_event in elastic/agent/server/api.py.
func Observer(sink Sink) func(agent.Event) {
	return func(e agent.Event) { (&observed{e, sink}).record() }
}

// observed is an event of the agent that is being recorded.
type observed struct {
	agent.Event
	sink Sink
}

func (o *observed) record() {
	switch w := o.What.(type) {
	case agent.Joining:
		o.rdzv("rendezvous.Next", "joins the next round", map[bool]string{false: "INIT", true: "RUNNING"}[w.Again], nil)
	case agent.Joined:
		message, state := "could not join a round", "FAILED"
		if r := o.Round; w.Err == nil {
			message, state = fmt.Sprintf("joined round %d as node %d of %d", r.Round, r.Rank, r.WorldSize), "RUNNING"
		}
		o.rdzv("rendezvous.Next", message, state, w.Err)
		o.step("RENDEZVOUS", w.Step, w.Before)
	case agent.RanksAssigned:
		o.step("ASSIGN_WORKER_RANKS", w.Step, w.Before)
	case agent.WorkersStarted:
		for i := range o.Job.LocalWorldSize {
			if w.Err == nil {
				o.sink.Record(o.worker("START", i, w.PIDs[i]))
			}
		}
	case agent.Decided:
		if w.Change != "" {
			o.rdzv("rendezvous.Changes", w.Change, "RUNNING", nil)
		}
	case agent.AttemptFailed:
		o.attempt(&w)
	case agent.JobPreempted:
		p := PreemptedEvent{
			Time: o.Time, RunID: o.Job.RunID, Hostname: o.Job.Host, Role: o.Job.Role, Restarts: o.Restarts,
			Host: w.By.Host, Signal: w.By.Signal, SignalTime: w.By.Time.UnixMilli(),
		}
		if o.Round != nil {
			p.GroupRank = &o.Round.Rank
		}
		o.sink.Record(p)
	case agent.Watchdog:
		e := o.event("RUNNING", o.Round)
		e.Watchdog = &w
		o.sink.Record(e)
	case agent.Finished:
		o.finished(&w)
	}
}

// event has what all events have in common.
func (o *observed) event(state string, round *rendezvous.Info) Event {
	e := Event{
		Time: o.Time, State: state, RunID: o.Job.RunID, Role: o.Job.Role, Hostname: o.Job.Host,
		RdzvBackend: o.Job.Backend, Restarts: o.Restarts, EntryPoint: o.Job.Program,
	}
	if round != nil {
		e.GroupRank, e.GroupWorldSize = &round.Rank, &round.WorldSize
	}
	return e
}

// step records a step of starting an attempt. torch tells the rank of the round before.
func (o *observed) step(state string, s agent.Step, before *rendezvous.Info) {
	e := o.event(state, before)
	e.Duration = o.Time.Sub(s.Began)
	if s.Err != nil {
		e.RawError = s.Err.Error()
	}
	o.sink.Record(e)
}

// worker has what all events of a worker have in common.
func (o *observed) worker(state string, localRank, pid int) Event {
	e := o.event(state, o.Round)
	e.Worker = &Worker{
		PID: pid, Rank: o.Ranks.Base + localRank, LocalRank: localRank,
		RoleRank: o.Ranks.RoleBase + localRank, RoleWorldSize: o.Ranks.RoleWorldSize,
	}
	return e
}

// finished records how every worker of the last attempt ended, and the agent.
func (o *observed) finished(f *agent.Finished) {
	took := o.Time.Sub(f.Began)
	for i := range o.Job.LocalWorldSize {
		exit, ended := f.Exits[i]
		if !ended {
			continue
		}
		var failed *failure.ProcessFailure
		state := "TERMINATED"
		if f.Result != nil {
			failed = f.Result.Failures[o.Ranks.Base+i]
		}
		switch {
		case f.Result != nil && !f.Result.IsFailed():
			state, failed = "SUCCEEDED", nil
		case failed != nil:
			state = "FAILED"
		}
		e := o.worker(state, i, exit.PID)
		if e.RunTime = took; failed != nil {
			e.Worker.ExitCode, e.RawError = &failed.ExitCode, string(failed.ErrorFileData())
		}
		o.sink.Record(e)
	}
	e := o.event(string(f.State()), o.Round)
	if e.RunTime = took; f.Err != nil {
		e.RawError = f.Err.Error()
	}
	o.sink.Record(e)
}

// attempt records that an attempt has failed.
func (o *observed) attempt(f *agent.AttemptFailed) {
	e := AttemptEvent{
		Time: o.Time, RunID: o.Job.RunID, Hostname: o.Job.Host, Host: f.Host, Role: f.Role, GroupRank: o.Round.Rank,
		Restarts: o.Restarts, MaxRestarts: o.Job.MaxRestarts, Cause: f.Cause,
		Ran: f.Ran.Milliseconds(), Progress: Progress{f.Progress.Step, f.Progress.Files},
	}
	if w := f.Worker; w != nil {
		e.Rank, e.LocalRank, e.PID, e.ExitCode, e.Signal = &w.Rank, w.LocalRank, w.PID, w.ExitCode, w.Signal
		e.Message, e.Stderr = w.Cause, f.Stderr
	}
	if f.Decision != nil {
		e.Action, e.Decision = string(f.Decision.Action), f.Decision.String()
	}
	o.sink.Record(e)
}

// rdzv records a step of the rendezvous.
func (o *observed) rdzv(name, message, state string, err error) {
	e := RdzvEvent{Time: o.Time.UnixMilli(), Name: name, Message: message, NodeState: state, RunID: o.Job.RunID,
		Hostname: o.Job.Host, PID: os.Getpid()}
	if err != nil {
		e.ErrorTrace = err.Error()
	} else if _, joined := o.What.(agent.Joined); joined {
		r := o.Round
		e.Rank, e.MasterEndpoint = &r.Rank, net.JoinHostPort(r.MasterAddr, strconv.Itoa(r.MasterPort))
	}
	o.sink.Record(e)
}
