package metrics

import (
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
)

// Seconds are the buckets of all durations: from a millisecond, in which a local
// job starts its workers, to the ten minutes that a rendezvous may take.
var Seconds = []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600}

// Info says which agent a Job's metrics are about.
type Info struct {
	RunID, Role, Host string
	// LocalWorldSize is the number of this host's workers, MaxRestarts how often
	// they may be started again.
	LocalWorldSize, MaxRestarts int
}

// A Job keeps the metrics of one agent in a Registry, for Prometheus: as a Handler those
// that TorchElastic has, by Observe muster's own. Docs of their names are the help texts.
// Make it with NewJob.
type Job struct {
	steps                   map[string]step // by name in the stream
	remaining, round, nodes *Gauge
	worldSize               *Gauge
	restarts, rejoins       *Counter
	exits                   map[failure.Cause]*Counter
	state                   atomic.Pointer[agent.State]
}

// causes are those that a worker may end of, in the order in which they are printed.
var causes = [...]failure.Cause{
	failure.CauseSuccess, failure.CauseExitCode, failure.CauseSignal, failure.CauseOOM, failure.CauseTimer, failure.CauseHang,
	failure.CauseStopped, failure.CauseUninterruptible, failure.CauseNotStarted,
}

var states = [...]agent.State{agent.Unknown, agent.Init, agent.Healthy, agent.Unhealthy, agent.Stopped, agent.Succeeded, agent.Failed}

// A step is one that has a duration and may fail.
type step struct {
	took     *Histogram
	failures *Counter
}

// NewJob registers the metrics of an agent, of its process and of the build.
// There is one for each Registry.
func NewJob(r *Registry, info Info) *Job {
	j := &Job{steps: map[string]step{}, exits: map[failure.Cause]*Counter{}}
	add := func(name, metric, label, help string) {
		j.steps[name] = step{
			took:     r.Histogram("muster_"+metric+"_duration_seconds", help, Seconds),
			failures: r.Counter("muster_step_failures_total", "Steps that ended in an error.", Label{"step", label}),
		}
	}
	add(StepRendezvous, "rendezvous", "rendezvous", "Time from joining a round until this host had its ranks in it.")
	add(AssignWorkerRanks, "rank_assignment", "rank_assignment", "Part of the rendezvous: time that the hosts of a round took to exchange ranks.")
	add(StartWorkers, "worker_start", "worker_start", "Time that starting all workers of this host took.")
	add(StopWorkers, "worker_stop", "worker_stop", "Time from the first sign that the workers of this host must end until all had ended.")
	add(InitializeWorkers, "initialization", "initialization", "Time from joining a round until the workers of this host had been started.")
	add(RestartWorkers, "restart", "restart", "Time from the first sign that the workers must start again, for a failure or another set of hosts, until they had been started.")

	j.remaining = r.Gauge("muster_restarts_remaining", "Restarts that the job may still use.")
	j.remaining.Set(float64(info.MaxRestarts))
	j.restarts = r.Counter("muster_restarts_total", "Restarts that the job has used, on whichever host the failure was.")
	j.rejoins = r.Counter("muster_rejoins_total", "Times that the workers were stopped for another round without a restart being counted.")
	j.round = r.Gauge("muster_round", "Number of the rendezvous round that this host is in, from 0; -1 before the first.")
	j.round.Set(-1)
	j.nodes = r.Gauge("muster_nodes", "Hosts in the round.")
	j.worldSize = r.Gauge("muster_world_size", "Workers of all hosts in the round.")
	r.Gauge("muster_local_world_size", "Workers of this host.").Set(float64(info.LocalWorldSize))
	for _, c := range causes {
		label := strings.ReplaceAll(string(c), " ", "_")
		j.exits[c] = r.Counter("muster_worker_exits_total", "Workers of this host that have ended, by cause.", Label{"cause", label})
	}
	r.Gauge("muster_job_info", "Which job and host the metrics are about; always 1.",
		Label{"run_id", info.RunID}, Label{"role", info.Role}, Label{"host", info.Host}).Set(1)
	state := agent.Init
	j.state.Store(&state)
	r.OnCollect(j.collectState)
	r.OnCollect(collectBuild)
	r.OnCollect(collectProcess)
	return j
}

// Emit takes one of TorchElastic's metrics. Those that have no counterpart are ignored.
func (j *Job) Emit(m Metric) {
	if m.Group != Group {
		return
	}
	if name, ok := strings.CutSuffix(m.Name, ".duration.ms"); ok {
		took := m.Elapsed
		if took == 0 {
			took = time.Duration(m.Value) * time.Millisecond
		}
		if s, ok := j.steps[name]; ok {
			s.took.Observe(took.Seconds())
		}
	} else if name, ok := strings.CutSuffix(m.Name, ".failure"); ok {
		if s, ok := j.steps[name]; ok {
			s.failures.Add(float64(m.Value))
		}
	} else if strings.HasPrefix(m.Name, "workers.") && strings.HasSuffix(m.Name, ".remaining_restarts") {
		j.remaining.Set(float64(m.Value))
	}
}

// Observe takes what torch has no metric for, for agent.Config.Observers.
func (j *Job) Observe(e agent.Event) {
	switch w := e.What.(type) {
	case agent.WorkersStarted:
		j.round.Set(float64(e.Round.Round))
		j.nodes.Set(float64(e.Round.WorldSize))
		j.worldSize.Set(float64(e.Ranks.WorldSize))
		j.restarts.Add(float64(e.Restarts) - j.restarts.Value()) // one agent tells, so that nobody else adds
	case agent.Decided:
		j.state.Store(&w.State)
		if w.Rejoining {
			j.rejoins.Inc()
		}
	case agent.AttemptEnded:
		for _, cause := range w.Causes {
			if c := j.exits[cause]; c != nil {
				c.Inc()
			}
		}
	case agent.Finished:
		state := w.State()
		j.state.Store(&state)
	}
}

// collectState adds the state of the worker group: always exactly one is 1.
func (j *Job) collectState(c *Collect) {
	is := *j.state.Load()
	for _, s := range states {
		v := 0.0
		if s == is {
			v = 1
		}
		c.Gauge("muster_group_state", "State of the worker group of this host: 1 for the one that it is in.", v, Label{"state", string(s)})
	}
}

// A Worker is what is read of a live worker for a scrape.
type Worker struct {
	Rank, LocalRank int
	CPU             time.Duration // user and system time
	Resident        int64         // bytes
	// Restarts says how often the worker with this local rank was started again,
	// for a failure or another set of hosts.
	Restarts int
}

// Worker adds what is known of a worker.
func (c *Collect) Worker(w Worker) {
	labels := []Label{{"rank", strconv.Itoa(w.Rank)}, {"local_rank", strconv.Itoa(w.LocalRank)}}
	c.Counter("muster_worker_cpu_seconds_total", "CPU time of a worker, user and system.", w.CPU.Seconds(), labels...)
	c.Gauge("muster_worker_resident_memory_bytes", "Memory that a worker has resident.", float64(w.Resident), labels...)
	c.Gauge("muster_worker_restarts", "Times that the worker with this local rank was started again.", float64(w.Restarts), labels...)
}

// Timers are the figures of the watchdog, over the whole life of the agent.
type Timers struct {
	Live                       int // deadlines that are running
	Expired, Killed, Malformed int64
}

// Timers adds the figures of the watchdog.
func (c *Collect) Timers(t Timers) {
	c.Gauge("muster_timers_live", "Deadlines of workers that are running.", float64(t.Live))
	c.Counter("muster_timers_expired_total", "Deadlines that workers have missed.", float64(t.Expired))
	c.Counter("muster_timer_kills_total", "Workers that were killed for a missed deadline.", float64(t.Killed))
	c.Counter("muster_timer_malformed_lines_total", "Lines in the timers' FIFO that could not be read.", float64(t.Malformed))
}

// collectBuild adds what the program was built from.
func collectBuild(c *Collect) {
	version, revision := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	c.Gauge("muster_build_info", "What the program was built from; always 1.", 1,
		Label{"version", version}, Label{"revision", revision}, Label{"goversion", runtime.Version()})
}
