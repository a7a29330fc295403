package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// status is what the agent shows of itself. The goroutine of Run writes it, anybody
// reads it.
type status struct {
	mu      sync.Mutex // guards the rest
	began   time.Time
	state   State
	phase   health.Phase
	waiting string
	// at is the last attempt, of which a reader touches nothing but what is set
	// before it comes here. group and exits come later.
	at       *attempt
	group    Group
	exits    map[int]process.Exit
	moments  []health.Moment
	failures []health.Failure
	restarts int
	starts   int // of the group
	// preempted says who asked the whole job to stop; nil if nobody did. It is not changed
	// any more.
	preempted *failure.Preemption

	hosts  map[int]string // names of the nodes of at, by group rank, as far as they are known
	looked time.Time      // when somebody last looked for them
	looks  sync.WaitGroup
}

// start notes the begin of the run.
func (a *Agent) start(now time.Time) {
	a.status.mu.Lock()
	defer a.status.mu.Unlock()
	a.status.began, a.status.state = now, Init
}

// counted notes that a restart was counted.
func (a *Agent) counted(why string) {
	a.setState(Stopped)
	a.happened(health.KindRestart, "", fmt.Sprintf("restart %d of %d", a.restarts, a.cfg.MaxRestarts), why)
}

// happened notes a moment on the time line. An empty phase goes on.
func (a *Agent) happened(kind health.Kind, phase health.Phase, what, why string) {
	s := &a.status
	s.mu.Lock()
	defer s.mu.Unlock()
	if phase != "" {
		s.phase, s.waiting = phase, ""
	}
	s.restarts = a.restarts
	m := health.Moment{Time: time.Now(), Kind: kind, Phase: phase, Restarts: a.restarts, What: what, Why: why}
	if s.at != nil {
		m.Round = s.at.round.Round
	}
	if len(s.moments) == health.MaxTimeline {
		s.moments = slices.Delete(s.moments, 0, 1)
	}
	s.moments = append(s.moments, m)
}

// enter notes that the agent has come to another phase, with the group in a state.
func (a *Agent) enter(phase health.Phase, state State, what, why string) {
	a.setState(state)
	a.happened(health.KindPhase, phase, what, why)
}

func (a *Agent) setState(state State) {
	a.status.mu.Lock()
	defer a.status.mu.Unlock()
	a.status.state = state
}

// joined notes that the attempt has its round.
func (a *Agent) joined(at *attempt) {
	s := &a.status
	s.mu.Lock()
	s.at, s.group, s.exits = at, nil, nil
	s.hosts, s.looked = map[int]string{at.round.Rank: a.cfg.Host}, time.Time{}
	s.mu.Unlock()
	a.setState(Init)
	a.happened(health.KindRound, health.Assigning, fmt.Sprintf("round %d: %s", at.round.Round, text.Count(at.round.WorldSize, "host")), "")
}

// ran notes that its workers run.
func (a *Agent) ran(at *attempt) {
	s := &a.status
	s.mu.Lock()
	s.group, s.starts = at.group, s.starts+1
	s.mu.Unlock()
	close(at.known)
	a.setState(Healthy)
	a.happened(health.KindPhase, health.Running, fmt.Sprintf("%s of %d run here", text.Count(a.cfg.Spec.LocalWorldSize, "worker"), at.ranks.WorldSize), "")
}

// workersEnded notes how the workers ended.
func (a *Agent) workersEnded(exits map[int]process.Exit) {
	s := &a.status
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exits = maps.Clone(exits)
}

// failedWith notes the failures of an attempt, and what this host's workers did when they
// hung. file has the whole report; "" for none.
func (a *Agent) failedWith(report *failure.Report, file string) {
	root := report.Root()
	var shown []health.Failure
	for _, f := range report.Failures {
		shown = append(shown, health.Short(f))
	}
	if root != nil {
		shown[0].Report = file
		if report.Autopsy != "" {
			shown[0].Message += "\nworkers of this host: " + report.Autopsy
		}
	}
	s := &a.status
	s.mu.Lock()
	s.failures = shown
	s.mu.Unlock()
	if root != nil {
		a.log.Info("workers failed", "rank", root.Rank, "local_rank", root.LocalRank, "host", root.Host, "exit_code", root.ExitCode, "cause", root.Cause)
		a.happened(health.KindFailure, "", fmt.Sprintf("rank %d failed", root.Rank), root.Cause)
	}
}

// Waiting tells the agent what the rendezvous waits for, so that its State says so.
// It may be called concurrently.
func (a *Agent) Waiting(w rendezvous.Waiting) {
	s := &a.status
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = ""
	if w.MaxNodes > 0 || w.Note != "" {
		s.waiting = w.String()
	}
}

// Alive returns when the agent last made progress. It waits for events only, which
// is progress, so that is now, unless the server of the workers' timers is stuck.
// It may be called concurrently.
// Source: the alive callback of LocalElasticAgent._setup_healthcheck.
func (a *Agent) Alive() time.Time {
	if w := a.watchdog.Load(); w != nil {
		return w.server.Progress()
	}
	return time.Now()
}

// State returns what is known of the job on this host, for package health. It may
// be called concurrently, also before and after Run.
func (a *Agent) State(context.Context) *health.State {
	now := time.Now()
	s := &a.status
	s.mu.Lock()
	st := &health.State{
		Time: now,
		Job: health.Job{
			RunID: a.cfg.Rendezvous.RunID(), Backend: a.cfg.Rendezvous.Backend(),
			Role: a.cfg.Spec.Role, Entrypoint: a.cfg.Spec.Title,
			Started: s.began, State: string(s.state), Phase: s.phase, WaitingFor: s.waiting,
			Restarts: s.restarts, MaxRestarts: a.cfg.MaxRestarts, LogDir: a.cfg.Logs.Dir(),
			Preempted: s.preempted,
		},
		Host:     health.Host{Name: a.cfg.Host, Workers: a.cfg.Spec.LocalWorldSize, GroupRank: -1, State: string(s.state)},
		Timeline: slices.Clone(s.moments),
		Failures: s.failures,
	}
	at, group, exits, hosts := s.at, s.group, s.exits, maps.Clone(s.hosts)
	s.mu.Unlock()
	if at == nil {
		return st
	}
	a.lookForHosts(now, at)
	st.Job.Round, st.Host.GroupRank = at.round.Round, at.round.Rank
	for i := range at.round.WorldSize {
		h := health.Host{GroupRank: i, Name: hosts[i]}
		if i == at.round.Rank {
			h = st.Host
		}
		st.Hosts = append(st.Hosts, h)
	}
	if group == nil {
		return st
	}
	st.Job.WorldSize = at.ranks.WorldSize
	pids := group.PIDs()
	st.Workers = a.workerStates(now, at, pids, exits)
	ranks := make(map[int]int, len(pids))
	for i, pid := range pids {
		ranks[pid] = at.ranks.Base + i
	}
	st.Timers = a.liveTimers(now, ranks)
	return st
}

// Collect adds what the workers use and how their timers are, for a scrape. It may be
// called concurrently.
func (a *Agent) Collect(c *metrics.Collect) {
	s := &a.status
	s.mu.Lock()
	at, group, ended, starts := s.at, s.group, s.exits != nil, s.starts
	s.mu.Unlock()
	if w := a.watchdog.Load(); w != nil {
		st := w.server.Stats()
		c.Timers(metrics.Timers{Live: st.Timers, Expired: int64(st.Expired), Killed: int64(st.Killed), Malformed: w.malformed()})
	}
	if group == nil || ended {
		return
	}
	pids := group.PIDs()
	uses := a.meter.Read(time.Now(), slices.Sorted(maps.Values(pids)))
	for _, i := range slices.Sorted(maps.Keys(pids)) {
		if u, ok := uses[pids[i]]; ok {
			c.Worker(metrics.Worker{
				Rank: at.ranks.Base + i, LocalRank: i, Restarts: starts - 1,
				CPU: time.Duration(u.CPUSeconds * float64(time.Second)), Resident: u.RSSBytes,
			})
		}
	}
}

// mostHosts bounds how many hosts' names are looked up, and lookInterval is how often
// those that are missing are.
const (
	mostHosts    = 256
	lookInterval = 2 * time.Second
)

// lookForHosts begins to look up the names of the other nodes, which they tell in the
// store of the round when their workers run.
func (a *Agent) lookForHosts(now time.Time, at *attempt) {
	s := &a.status
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at != at || s.phase != health.Running && s.phase != health.ExitBarrier || now.Sub(s.looked) < lookInterval || len(s.hosts) >= min(at.round.WorldSize, mostHosts) {
		return
	}
	s.looked = now
	known := maps.Clone(s.hosts)
	s.looks.Go(func() {
		ctx, cancel := context.WithTimeout(at.life, a.cfg.PeerTimeout)
		defer cancel()
		for i := 0; i < at.round.WorldSize && len(known) < mostHosts; i++ {
			if _, ok := known[i]; ok {
				continue
			}
			name, err := lookUp(ctx, at.round.Store, fmt.Sprint(agentPrefix, i))
			if err != nil {
				return
			}
			if len(name) > 0 {
				known[i] = string(name[:min(len(name), 255)])
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.at == at {
			s.hosts = known
		}
	})
}

// workerStates describes the workers of this host.
func (a *Agent) workerStates(now time.Time, at *attempt, pids map[int]int, exits map[int]process.Exit) []health.Worker {
	var uses map[int]health.Usage
	if exits == nil {
		uses = a.meter.Read(now, slices.Sorted(maps.Values(pids)))
	}
	workers := make([]health.Worker, 0, len(pids))
	for _, i := range slices.Sorted(maps.Keys(pids)) {
		pid, sink, output := pids[i], at.logs.Sink(i), at.logs.Output(i)
		w := health.Worker{
			Rank: at.ranks.Base + i, LocalRank: i, PID: pid, State: string(Healthy), Started: at.began,
			Usage: uses[pid], Heartbeat: a.heartbeat(pid), LastOutput: output.Last, Stdout: sink.StdoutPath, Stderr: sink.StderrPath,
		}
		if sink.StderrPath == "" {
			w.StderrLines = failure.LastLines(at.logs.StderrTail(i), shownLines)
		}
		_, runs := uses[pid]
		if exit, ended := exits[i]; ended {
			w.State, w.Exit = string(Failed), shownExit(exit)
			if exit.Code == 0 {
				w.State = string(Succeeded)
			}
			w.Usage.CPUSeconds = (exit.UserTime + exit.SystemTime).Seconds()
		} else if uses != nil && !runs {
			w.State = string(Stopped)
		}
		workers = append(workers, w)
	}
	return workers
}

// heartbeat is what a worker last told of its progress; nil if it has not.
func (a *Agent) heartbeat(pid int) *health.Heartbeat {
	w := a.watchdog.Load()
	if w == nil || w.socket == nil {
		return nil
	}
	h, ok := w.socket.Heartbeat(pid)
	if !ok {
		return nil
	}
	return &health.Heartbeat{Step: h.Step, Time: h.Time}
}

// shownLines is how many of a worker's last lines a State has.
const shownLines = 20

func shownExit(exit process.Exit) *health.Exit {
	e := &health.Exit{Time: exit.Time, Code: exit.Code, Cause: exit.OOMKilled}
	if exit.Code < 0 {
		e.Signal = process.SignalName(syscall.Signal(-exit.Code))
	}
	if exit.StoppedBy != 0 && e.Cause == "" {
		e.Cause = "stopped by muster"
	}
	return e
}

// ended notes the end of the job.
func (a *Agent) ended(r *Result, err error) {
	state, what, why := Failed, "the job has failed", ""
	switch {
	case r != nil && r.State == Succeeded && r.Left:
		state, what = Succeeded, "this host has left the job"
	case r != nil && r.State == Succeeded:
		state, what = Succeeded, "the job has succeeded"
	case r != nil && r.Preempted != nil:
		what, why = "the job is preempted", r.Preempted.String()
	case r != nil && r.Drained:
		what, why = "this host has left the job", r.Report.Decision
	case err != nil:
		why = err.Error()
	case r != nil && r.Report != nil && r.Report.Root() != nil:
		why = r.Report.Root().Error()
	}
	if _, ok := errors.AsType[*process.SignalError](err); ok && (r == nil || r.Preempted == nil) {
		what = "the agent was told to stop"
	}
	a.setState(state)
	a.happened(health.KindEnd, health.Ended, what, why)
}
