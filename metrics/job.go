package metrics

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/slow"
	"github.com/muster-run/muster/internal/version"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/timer"
)

// Live is what a Job asks at each scrape; an *agent.Agent is one.
type Live interface {
	Job() *agent.Job
	Workers() []agent.Worker
	TimerStats() (stats timer.Stats, malformed uint64)
	GPUs(wait time.Duration) []agent.GPU
}

// A Job keeps the metrics of one agent for Prometheus. The texts with the metrics say
// what they are. Its zero value is ready. Observe is for agent.Config.Observers; Watch
// names the agent, once there is one. All methods may be called concurrently.
type Job struct {
	// Warm is asked at each scrape what warm starts cost; nil without them. Set it before Watch.
	Warm func() *warm.Stats
	// Times is asked where the time of the workers has gone until a moment, in milliseconds since 1970;
	// nil if nobody knows. Set it before Watch.
	Times func(now int64) accounts.Spent
	// Slow is asked for the rank that makes the others wait, which may be nil; nil if nobody knows. Set it
	// before Watch.
	Slow func() *slow.Finding

	meter procfs.Meter

	mu sync.Mutex // guards the rest; not held while the agent or /proc is asked
	stopwatch
	live     Live
	job      *agent.Job       // nil before the first event and Watch
	round    *rendezvous.Info // the last whose workers were to start; nil before
	world    int              // workers in it
	state    agent.State      // "" before there is one
	restarts int              // of the job
	rejoins  int
	starts   int // of this host's workers
	took     [len(steps)]histogram
	failed   [len(steps)]int
	exits    [len(causes)]int
}

// steps are those that have a duration and may fail, and their names for Prometheus.
var steps = [...]struct{ step, name, help string }{
	{stepRendezvous, "rendezvous", "Time from joining a round until this host had its ranks in it."},
	{stepRanks, "rank_assignment", "Part of the rendezvous: time that the hosts of a round took to exchange ranks."},
	{stepStart, "worker_start", "Time that starting all workers of this host took."},
	{stepStop, "worker_stop", "Time from the first sign that the workers of this host must end until all had ended."},
	{stepInitialize, "initialization", "Time from joining a round until the workers of this host had been started."},
	{stepRestart, "restart", "Time from the first sign that the workers must start again, for a failure or another " +
		"set of hosts, until they had been started."},
}

// causes are those that a worker may end of.
var causes = [...]failure.Cause{
	failure.CauseSuccess, failure.CauseExitCode, failure.CauseSignal, failure.CauseOOM, failure.CauseTimer,
	failure.CauseHang, failure.CauseStopped, failure.CauseUninterruptible, failure.CauseNotStarted,
}

var states = [...]agent.State{agent.Unknown, agent.Init, agent.Healthy, agent.Unhealthy, agent.Stopped,
	agent.Succeeded, agent.Failed}

// Watch names the agent; nil is none.
func (j *Job) Watch(live Live) {
	if live == nil {
		return
	}
	job := live.Job()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live, j.job = live, job
}

// Observe takes an event.
func (j *Job) Observe(e agent.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.job, j.restarts = e.Job, max(j.restarts, e.Restarts) // some events are told late
	j.stopwatch.observe(&e, j.count)
	switch w := e.What.(type) {
	case agent.WorkersStarted:
		j.round, j.world = e.Round, e.Ranks.WorldSize
		if w.Err == nil {
			j.starts++
		}
	case agent.Decided:
		j.state = w.State
		if w.Rejoining {
			j.rejoins++
		}
	case agent.AttemptEnded:
		for _, ended := range w.Causes {
			if i := slices.Index(causes[:], ended); i >= 0 {
				j.exits[i]++
			}
		}
	case agent.Finished:
		j.state = w.State()
	}
}

// count notes the end of a step.
func (j *Job) count(step string, d time.Duration, err error) {
	for i := range steps {
		if steps[i].step == step {
			j.took[i].observe(d.Seconds())
			if err != nil {
				j.failed[i]++
			}
		}
	}
}

// WritePrometheus writes the metrics of the job and of the build in Prometheus' text format
// 0.0.4, with one Write. The error is w's.
func (j *Job) WritePrometheus(w io.Writer) error {
	s := scrape{}
	j.mu.Lock()
	live, again := j.live, max(0, j.starts-1)
	j.writeTo(s)
	j.mu.Unlock()
	if live != nil {
		j.writeLive(s, live, again)
		if j.Warm != nil {
			s.warm(cmp.Or(j.Warm(), &warm.Stats{}))
		}
		if j.Times != nil {
			s.times(j.Times(time.Now().UnixMilli()))
		}
		if j.Slow != nil {
			s.slow(j.Slow())
		}
	}
	writeBuild(s)
	_, err := w.Write(s.text())
	return err
}

// writeTo writes what the events told. The caller holds mu.
func (j *Job) writeTo(s scrape) {
	for i, step := range steps {
		s.histogram("muster_"+step.name+"_duration_seconds", step.help, &j.took[i])
		s.counter("muster_step_failures_total", "Steps that ended in an error.", float64(j.failed[i]),
			label{"step", step.name})
	}
	s.counter("muster_restarts_total", "Restarts that the job has used, on whichever host the failure was.",
		float64(j.restarts))
	s.counter("muster_rejoins_total", "Times that the workers were stopped for another round without a restart being "+
		"counted.", float64(j.rejoins))
	round, nodes := -1, 0
	if j.round != nil {
		round, nodes = j.round.Round, j.round.WorldSize
	}
	s.gauge("muster_round", "Number of the rendezvous round that this host is in, from 0; -1 before the first.",
		float64(round))
	s.gauge("muster_nodes", "Hosts in the round.", float64(nodes))
	s.gauge("muster_world_size", "Workers of all hosts in the round.", float64(j.world))
	for i, c := range causes {
		s.counter("muster_worker_exits_total", "Workers of this host that have ended, by cause.", float64(j.exits[i]),
			label{"cause", strings.ReplaceAll(string(c), " ", "_")})
	}
	for _, state := range states {
		s.gauge("muster_group_state", "State of the worker group of this host: 1 for the one that it is in.",
			map[bool]float64{true: 1}[state == cmp.Or(j.state, agent.Init)], label{"state", string(state)})
	}
	if job := j.job; job != nil {
		s.gauge("muster_restarts_remaining", "Restarts that the job may still use.", float64(remaining(job, j.restarts)))
		s.gauge("muster_local_world_size", "Workers of this host.", float64(job.LocalWorldSize))
		s.gauge("muster_job_info", "Which job and host the metrics are about; always 1.", 1,
			label{"run_id", job.RunID}, label{"role", job.Role}, label{"host", job.Host})
	}
}

// writeLive writes what the workers use, how often they were started again, and how
// their timers are.
func (j *Job) writeLive(s scrape, live Live, again int) {
	timers, malformed := live.TimerStats()
	s.gauge("muster_timers_live", "Deadlines of workers that are running.", float64(timers.Timers))
	s.counter("muster_timers_expired_total", "Deadlines that workers have missed.", float64(timers.Expired))
	s.counter("muster_timer_kills_total", "Workers that were killed for a missed deadline.", float64(timers.Killed))
	s.counter("muster_timer_malformed_lines_total", "Lines in the timers' FIFO that could not be read.",
		float64(malformed))
	workers := live.Workers()
	var pids []int
	for i := range workers {
		if workers[i].Exit == nil {
			pids = append(pids, workers[i].PID)
		}
	}
	uses, gpus := j.meter.Read(time.Now(), pids), live.GPUs(0)
	for _, w := range workers {
		if u, ok := uses[w.PID]; ok {
			labels := []label{{"rank", strconv.Itoa(w.Rank)}, {"local_rank", strconv.Itoa(w.LocalRank)}}
			s.counter("muster_worker_cpu_seconds_total", "CPU time of a worker, user and system.", u.CPU.Seconds(), labels...)
			s.gauge("muster_worker_resident_memory_bytes", "Memory that a worker has resident.", float64(u.Resident), labels...)
			s.gauge("muster_worker_restarts", "Times that the worker with this local rank was started again.", float64(again),
				labels...)
			if h := w.Heartbeat; h != nil && h.Step >= 0 {
				s.gauge("muster_worker_step", "Step that a worker's last heartbeat told.", float64(h.Step), labels...)
				s.gauge("muster_worker_steps_per_second", "Steps per second of a worker, of the last half minute to minute; 0 "+
					"where that is not known, or it tells nothing any more.", h.PerSecond, labels...)
			}
			if w.LocalRank < len(gpus) {
				s.gpu(&gpus[w.LocalRank], labels)
			}
		}
	}
}

// warm writes what warm starts cost.
func (s scrape) warm(w *warm.Stats) {
	s.gauge("muster_warm_template_ready", "Whether there is a process that workers of this host are forked from: 1 or 0.",
		map[bool]float64{true: 1}[w.Ready])
	s.gauge("muster_warm_template_pss_bytes", "Memory of that process. What it shares with workers counts in equal "+
		"parts for all of them.", float64(w.PSSBytes))
	s.gauge("muster_warm_template_build_seconds",
		"Time that it took to start that process and to import what workers need.", w.BuildSeconds)
	const starts = "Workers of this host that were started with --warm, by how: as a fork of that process, or as usual."
	s.counter("muster_worker_starts_total", starts, float64(w.WarmStarts), label{"how", "warm"})
	s.counter("muster_worker_starts_total", starts, float64(w.ColdStarts), label{"how", "cold"})
}

// times writes where the time of the workers has gone.
func (s scrape) times(spent accounts.Spent) {
	for _, a := range accounts.All {
		s.gauge("muster_worker_time_seconds", "Time of all workers of this host, by the account to which it has gone. All "+
			"accounts add up to the number of workers times the time since the first rendezvous began.",
			float64(spent[a])/1000, label{"account", string(a)})
	}
}

// slow writes what a slow rank costs.
func (s scrape) slow(f *slow.Finding) {
	rank, wait := "", time.Duration(0)
	if f != nil {
		rank, wait = strconv.Itoa(f.Rank), f.Wait
	}
	s.gauge("muster_slow_rank_wait_seconds", "Part of a step, in seconds, in which all other ranks wait for a slow one; "+
		"0 if there is none.", wait.Seconds(), label{"rank", rank})
}

// gpu writes how busy a worker's GPU is.
func (s scrape) gpu(g *agent.GPU, worker []label) {
	labels := append(worker, label{"gpu", strconv.Itoa(g.Index)})
	if g.Percent != nil {
		s.gauge("muster_worker_gpu_utilization_ratio", "Part of the time in which the GPU with the worker's local rank "+
			"computed, as nvidia-smi said at the scrape before.", float64(*g.Percent)/100, labels...)
	}
	s.gauge("muster_worker_gpu_memory_used_bytes",
		"Memory in use of the GPU with the worker's local rank, by whichever process.", float64(g.UsedBytes), labels...)
	s.gauge("muster_worker_gpu_memory_bytes", "Memory of the GPU with the worker's local rank.", float64(g.TotalBytes),
		labels...)
}

// writeBuild writes what the program was built from.
func writeBuild(s scrape) {
	v := version.Read()
	s.gauge("muster_build_info", "What the program was built from; always 1.", 1,
		label{"version", v.Version}, label{"revision", v.Commit}, label{"goversion", v.Go})
}
