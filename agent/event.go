package agent

import (
	"errors"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/timer"
)

// An Event is something that happened to this host's part of a job. Each of
// Config.Observers gets every event before the agent continues. The goroutine of Run emits
// most, in the order in which they happened; Suspected, EvidenceTaken and Watchdog may come from other
// goroutines at the same time. Nothing in an Event changes afterwards, and an observer
// must not change it.
//
// Packages events, metrics and health have observers. They turn events into what
// TorchElastic records and publishes, and into what people look at.
type Event struct {
	Time time.Time
	Job  *Job // the same in all events of an agent, and never nil
	// Restarts is how many the job has used.
	Restarts int
	// Round is the one that this is about; nil before there is one. Ranks are this host's
	// in it, once they are known.
	Round *rendezvous.Info
	Ranks rendezvous.Ranks
	// What is one of the types below.
	What any
}

// A Job is what stays the same while an agent runs.
type Job struct {
	RunID, Backend, Role string
	Host                 string // this one
	Title                string // what runs, for people
	Program              string // the program's base name, or the function's name
	LocalWorldSize       int
	MaxRestarts          int
	LogDir               string
}

// A Step took from Began to the time of its event. Err says why it failed.
type Step struct {
	Began time.Time
	Err   error
}

// What may have happened.
type (
	// BackingOff: the next round begins later, because of a rule's back-off.
	BackingOff struct {
		Decision *policy.Decision
		Until    time.Time
	}
	// Joining: the agent asks for a round, Again if it has had one. An agent's first event is
	// the one without Again.
	Joining struct{ Again bool }
	// Joined: there is a round, and its nodes exchange their ranks now; or Err says why
	// this host has none. Before is the round before; nil in the first.
	Joined struct {
		Step
		Before *rendezvous.Info
	}
	// RanksAssigned: they have exchanged them, or could not.
	RanksAssigned struct {
		Step
		Before *rendezvous.Info
	}
	// WorkersStarted: all workers run, or one could not be started. Live says that those of
	// all hosts are yet to become a group, or to continue as one: Reconfigured follows.
	WorkersStarted struct {
		Step
		PIDs map[int]int // by local rank
		Live bool
	}
	// Resting: the workers of a live group pause, since others are lost or come.
	Resting struct{ Why string }
	// Reconfigured: the workers are a live group of World ranks, of which Stayed were in the
	// group before.
	Reconfigured struct{ World, Stayed int }
	// Decided: something has happened, and the agent knows what follows.
	Decided struct {
		State State // of the group from now on
		// Seen is what a look at the workers finds now; "" where there are none to look
		// at. torchrun looks ten times a second.
		Seen State
		// Change says which other nodes have come or gone; "" for none.
		Change string
		// Again says that the workers start again because of what happened at Since;
		// Rejoining says that no restart is counted for that.
		Again, Rejoining bool
		Since            time.Time
	}
	// Stopping: the workers are about to be stopped.
	Stopping struct {
		State State
		For   string // "", "for good", "for a new round"
		Why   string
	}
	// WorkersStopped: all have ended. Took is the time from their signal to their end.
	WorkersStopped struct{ Took time.Duration }
	// BarrierEntered: this host's workers have succeeded, and it waits for the others'.
	BarrierEntered struct{}
	// Suspected: workers hang, since about Since if that is known, or have missed a deadline. Kills
	// says that they are killed for it when there is evidence.
	Suspected struct {
		What, Why string
		Since     time.Time
		Kills     bool
	}
	// EvidenceTaken: what the workers did when a hang or a missed deadline was noticed. If another host has found a hang,
	// Since is since when this host's made no progress, as far as that is known, and Kills as in Suspected.
	EvidenceTaken struct {
		Summary string
		Since   time.Time
		Kills   bool
	}
	// FailureExplained: workers have failed, here or on another host. File has the report;
	// "" if it was not written.
	FailureExplained struct {
		Report *failure.Report
		File   string
	}
	// AttemptFailed: an attempt has failed on this host, or by the loss of another.
	// Worker is nil then.
	AttemptFailed struct {
		policy.Failure
		Worker   *failure.ProcessFailure
		Decision *policy.Decision // nil without a policy
	}
	// AttemptEnded: all workers of the attempt that had been started have ended.
	AttemptEnded struct{ Causes []failure.Cause }
	// RestartCounted: a restart of the job was counted. The rest says why, if that is a
	// failure of this host's workers; File has the report of it, "" for none. Live says that the
	// workers of other hosts continue.
	RestartCounted struct {
		Why, File string
		Decision  *policy.Decision // nil without a policy
		Live      bool
	}
	// JobPreempted: somebody has asked the whole job to stop.
	JobPreempted struct{ By failure.Preemption }
	// Watchdog: the watchdog begins or ends, or has done something about a timer, its
	// Request.
	Watchdog struct {
		Name    string
		Request *timer.Request
	}
	// Finished: the agent ends. Exits are of the last attempt's workers, by local rank.
	Finished struct {
		Step
		Result *Result // may be nil if there is an Err
		Exits  map[int]process.Exit
	}
)

// emit hands an event of an attempt, which may be nil or lack its round, to the observers.
// Only the goroutine of Run calls it.
func (a *Agent) emit(at *attempt, what any) {
	e := Event{Time: time.Now(), Job: &a.job, Restarts: a.restarts.used, What: what}
	if at != nil {
		e.Round, e.Ranks = at.round, at.team.ranks
	}
	a.published.mu.Lock()
	a.published.restarts = a.restarts.used
	a.published.mu.Unlock()
	a.observe(e)
}

// emitElsewhere is emit for other goroutines.
func (a *Agent) emitElsewhere(what any) {
	a.published.mu.Lock()
	e := Event{Time: time.Now(), Job: &a.job, Restarts: a.published.restarts, What: what}
	if at := a.published.at; at != nil {
		e.Round = at.round
	}
	a.published.mu.Unlock()
	a.observe(e)
}

func (a *Agent) observe(e Event) {
	for _, observe := range a.cfg.Observers {
		observe(e)
	}
}

// Outcome is what became of this host's part of the job, as jobfile.End has it, and why.
func (f Finished) Outcome() (outcome, why string) {
	r := f.Result
	if f.Err != nil {
		why = f.Err.Error()
	}
	_, stopped := errors.AsType[*process.SignalError](f.Err)
	switch {
	case r != nil && r.Preempted != nil:
		return jobfile.Preempted, r.Preempted.String()
	case stopped:
		return jobfile.Stopped, why
	case r != nil && r.Drained:
		return jobfile.Left, r.Report.Decision
	case f.State() == Succeeded:
		return jobfile.Succeeded, ""
	case r != nil && r.Report != nil && r.Report.Root() != nil:
		why = r.Report.Root().Error()
	}
	return jobfile.Failed, why
}

// State is Succeeded or Failed.
func (f Finished) State() State {
	if f.Err != nil || f.Result == nil || f.Result.IsFailed() {
		return Failed
	}
	return Succeeded
}
