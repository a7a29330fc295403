package jobstate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// An Observer makes States of what an agent does. Its zero value is ready, without an agent.
// Observe is for agent.Config.Observers; Watch names the agent that State asks. All methods
// may be called concurrently, also before and after the agent's Run. It is a Source but for
// WriteMetrics, which a metrics.Job has.
type Observer struct {
	// The Observer keeps only what events tell, in state. A State that it returns shares
	// nothing with that which changes later: State copies the timeline, and Observe makes a
	// new list of failures. State asks the agent for workers, their usage, hosts and timers
	// each time, and without the lock, so that Observe never waits for the answers.

	meter procfs.Meter // has a lock of its own

	mu    sync.Mutex   // guards the rest; not held while the agent or /proc is asked
	agent *agent.Agent // set once, by Watch; nil before
	state State        // as far as events tell
	// round and ranks are of the attempt that runs or ran last; round is nil before the
	// first. waiting is what Job.WaitingFor says until the phase ends.
	round   *rendezvous.Info
	ranks   rendezvous.Ranks
	waiting string
	spare   bool // it waits, and the others' round continues without this host
}

// Watch names the agent.
func (o *Observer) Watch(a *agent.Agent) {
	job := a.Job()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.agent = a
	o.know(job)
}

// know takes in what stays the same.
func (o *Observer) know(j *agent.Job) {
	o.state.Job = Job{RunID: j.RunID, Backend: j.Backend, Role: j.Role, Entrypoint: j.Title, MaxRestarts: j.MaxRestarts,
		LogDir: j.LogDir}
	o.state.Host = Host{Name: j.Host, Workers: j.LocalWorldSize, GroupRank: -1}
}

// Waiting says what the rendezvous waits for, until the agent's phase ends; nothing if w
// is empty.
func (o *Observer) Waiting(w rendezvous.Waiting) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wait(w)
}

func (o *Observer) wait(w rendezvous.Waiting) {
	o.waiting, o.spare = "", w.Running > 0
	if w.MaxNodes > 0 || w.Note != "" {
		o.waiting = w.String()
	}
}

// Observe takes an event.
func (o *Observer) Observe(e agent.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	job := &o.state.Job
	job.Restarts = max(job.Restarts, e.Restarts) // an event of another goroutine may be late
	switch w := e.What.(type) {
	case agent.BackingOff:
		o.backsOff(&e, &w)
	case agent.Joining:
		if !w.Again {
			o.know(e.Job)
			job.Started, job.State = e.Time, string(agent.Init)
		}
		o.moment(&e, KindPhase, InRendezvous, "waiting for the hosts of the next round", "")
	case agent.Joined:
		if w.Err == nil {
			o.spare = false
			o.round, o.ranks, job.State = e.Round, e.Ranks, string(agent.Init)
			o.moment(&e, KindRound, Assigning, fmt.Sprintf("round %d: %s", e.Round.Round,
				text.Count(e.Round.WorldSize, "host")), "")
		}
	case agent.WorkersStarted:
		if w.Err == nil {
			o.started(&e, w.Live)
		}
	case agent.Resting:
		o.moment(&e, KindLive, "", "the workers pause", w.Why)
	case agent.Reconfigured:
		m := o.moment(&e, KindLive, "", fmt.Sprintf("the live group has %s, %d of them kept", text.Count(w.World, "rank"),
			w.Stayed), "")
		m.Ranks, m.Stayed, o.ranks.WorldSize = w.World, w.Stayed, w.World
	case agent.Decided:
		if w.Rejoining && w.Change != "" {
			o.moment(&e, KindHosts, "", w.Change, "")
		}
	case agent.BarrierEntered:
		job.State = string(agent.Succeeded)
		o.moment(&e, KindPhase, ExitBarrier, "the workers here have succeeded; waiting for the other hosts'", "")
	case agent.Stopping:
		job.State = string(w.State)
		o.moment(&e, KindPhase, Restarting, strings.TrimSpace("stopping the workers "+w.For), w.Why)
	case agent.Suspected:
		o.moment(&e, KindFailure, "", w.What, w.Why)
	case agent.EvidenceTaken:
		o.moment(&e, KindFailure, "", "what the workers did", w.Summary)
	case agent.FailureExplained:
		o.failed(&e, w.Report, w.File)
	case agent.RestartCounted:
		job.State = string(agent.Stopped)
		o.moment(&e, KindRestart, "", fmt.Sprintf("restart %d of %d", e.Restarts, e.Job.MaxRestarts), w.Why)
	case agent.JobPreempted:
		job.Preempted = &w.By
	case agent.Finished:
		o.finished(&e, &w)
	}
}

// backsOff notes that the next round waits.
func (o *Observer) backsOff(e *agent.Event, w *agent.BackingOff) {
	d := w.Decision
	o.moment(e, KindPhase, Restarting, fmt.Sprintf("waiting %v before the next round", d.Delay),
		fmt.Sprintf("back-off of rule %s of %s", d.Rule, d.Source))
	o.wait(rendezvous.Waiting{Note: fmt.Sprintf("the back-off of rule %s, until %s", d.Rule, w.Until.Format("15:04:05"))})
}

// started notes that the workers run.
func (o *Observer) started(e *agent.Event, live bool) {
	o.ranks, o.state.Job.State = e.Ranks, string(agent.Healthy)
	here := text.Count(e.Job.LocalWorldSize, "worker")
	m := o.moment(e, KindPhase, Running, fmt.Sprintf("%s of %d run here", here, e.Ranks.WorldSize), "")
	if !live {
		m.Ranks = e.Ranks.WorldSize
	}
}

// moment notes a moment on the timeline, and returns it. An empty phase continues.
func (o *Observer) moment(e *agent.Event, kind string, phase Phase, what, why string) *Moment {
	if phase != "" {
		o.state.Job.Phase, o.waiting = phase, ""
	}
	m := Moment{Time: e.Time, Kind: kind, Phase: phase, Restarts: e.Restarts, What: what, Why: why}
	if o.round != nil {
		m.Round = o.round.Round
	}
	line := &o.state.Timeline
	if len(*line) == maxTimeline {
		*line = slices.Delete(*line, 0, 1)
	}
	*line = append(*line, m)
	return &(*line)[len(*line)-1]
}

// failed notes the failures of an attempt, and what this host's workers did when they
// hung. file is where the whole report is; "" for nowhere.
func (o *Observer) failed(e *agent.Event, report *failure.Report, file string) {
	var shown []Failure
	for _, f := range report.Failures {
		shown = append(shown, inShort(f))
	}
	o.state.Failures = shown
	if root := report.Root(); root != nil {
		shown[0].Report = file
		if report.Autopsy != "" {
			shown[0].Message += "\nwhat the workers did: " + report.Autopsy
		}
		o.moment(e, KindFailure, "", fmt.Sprintf("rank %d failed", root.Rank), root.Cause)
	}
}

// inShort is a failure as a State has it.
func inShort(f *failure.ProcessFailure) Failure {
	short := Failure{ProcessFailure: *f, Time: f.FailedAt}
	short.Traceback, short.TracebackFrom, short.LastLines, short.StderrTail, short.Collectives = "", "", nil, nil, nil
	return short
}

// ends says what the outcomes are in words.
var ends = map[string]string{
	jobfile.Succeeded: "the job has succeeded", jobfile.Failed: "the job has failed",
	jobfile.Preempted: "the job is preempted",
	jobfile.Stopped:   "the agent was told to stop", jobfile.Left: "this host has left the job",
}

// finished notes the end.
func (o *Observer) finished(e *agent.Event, f *agent.Finished) {
	outcome, why := f.Outcome()
	if outcome == jobfile.Succeeded && f.Result.Left {
		outcome = jobfile.Left
	}
	o.state.Job.State = string(f.State())
	o.moment(e, KindEnd, Ended, ends[outcome], why)
}

// watched is the agent; nil before Watch.
func (o *Observer) watched() *agent.Agent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.agent
}

// Alive returns when the agent last made progress.
func (o *Observer) Alive() time.Time {
	if a := o.watched(); a != nil {
		return a.Alive()
	}
	return time.Now()
}

// GPUs returns how busy the GPUs of this host are (agent.Agent.GPUs).
func (o *Observer) GPUs(wait time.Duration) []agent.GPU {
	if a := o.watched(); a != nil {
		return a.GPUs(wait)
	}
	return nil
}

// State returns what is known of the job on this host.
func (o *Observer) State(context.Context) *State {
	o.mu.Lock()
	s, a, round, ranks := o.state, o.agent, o.round, o.ranks
	if o.spare {
		round = nil
	}
	s.Timeline, s.Job.WaitingFor = slices.Clone(s.Timeline), o.waiting
	o.mu.Unlock()
	s.Time, s.Host.State = time.Now(), s.Job.State
	if round == nil || a == nil {
		return &s
	}
	s.Job.Round, s.Host.GroupRank = round.Round, round.Rank
	for i, name := range a.Hosts() {
		h := Host{GroupRank: i, Name: name}
		if i == round.Rank {
			h = s.Host
		}
		s.Hosts = append(s.Hosts, h)
	}
	workers := a.Workers()
	if workers == nil {
		return &s
	}
	s.Job.WorldSize = ranks.WorldSize
	var pids []int
	for _, w := range workers {
		if w.Exit == nil {
			pids = append(pids, w.PID)
		}
	}
	uses := o.meter.Read(s.Time, pids)
	for i := range workers {
		w := &workers[i]
		s.Workers = append(s.Workers, workerState(w, uses))
	}
	timers, _ := a.TimerStats()
	s.LiveTimers = timers.Timers
	return &s
}

// workerState describes a worker of this host.
func workerState(from *agent.Worker, uses map[int]procfs.Reading) Worker {
	w := Worker{
		Rank: from.Rank, LocalRank: from.LocalRank, PID: from.PID, State: string(agent.Healthy), Started: from.Started,
		LastOutput: from.Output.Last, Stdout: from.Stdout, Stderr: from.Stderr, StderrLines: from.Tail,
	}
	if h := from.Heartbeat; h != nil {
		w.Heartbeat = &Heartbeat{Step: h.Step, Time: h.Time, StepsPerSecond: h.PerSecond}
	}
	use, runs := uses[w.PID]
	w.Usage = Usage{CPUSeconds: use.CPU.Seconds(), CPUPercent: use.Percent, RSSBytes: use.Resident,
		Processes: use.Processes, Threads: use.Threads}
	if exit := from.Exit; exit != nil {
		w.State, w.Exit = string(agent.Failed), exitState(exit)
		if exit.Code == 0 {
			w.State = string(agent.Succeeded)
		}
		w.Usage.CPUSeconds = (exit.UserTime + exit.SystemTime).Seconds()
	} else if uses != nil && !runs {
		w.State = string(agent.Stopped)
	}
	return w
}

func exitState(exit *process.Exit) *Exit {
	e := &Exit{Time: exit.Time, Code: exit.Code, Cause: exit.OOMKilled}
	if exit.Code < 0 {
		e.Signal = failure.Signal(-exit.Code).String()
	}
	if exit.StoppedBy != 0 && e.Cause == "" {
		e.Cause = "stopped by muster"
	}
	return e
}
