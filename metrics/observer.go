package metrics

import (
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/agent"
)

// Names of the steps that are timed.
const (
	stepRun        = "SimpleElasticAgent.run"
	stepRendezvous = "SimpleElasticAgent._rendezvous"
	stepRanks      = "SimpleElasticAgent._assign_worker_ranks"
	stepInitialize = "SimpleElasticAgent._initialize_workers"
	stepRestart    = "SimpleElasticAgent._restart_workers"
	stepStart      = "LocalElasticAgent._start_workers"
	stepStop       = "LocalElasticAgent._stop_workers"
	stepMonitor    = "LocalElasticAgent._monitor_workers"
)

// A stopwatch times the steps of an agent. The events that it looks at come from one
// goroutine.
type stopwatch struct {
	joining    time.Time // when this host began to join the round
	restarting time.Time // when it was clear that another round is due; zero in the first
}

// observe calls took for each step that ends with an event.
func (s *stopwatch) observe(e *agent.Event, took func(step string, d time.Duration, err error)) {
	// initialized ends what began when this host joined the round, and the restart that
	// it may have been part of.
	initialized := func(err error) {
		took(stepInitialize, e.Time.Sub(s.joining), err)
		if !s.restarting.IsZero() {
			took(stepRestart, e.Time.Sub(s.restarting), err)
			s.restarting = time.Time{}
		}
	}
	switch w := e.What.(type) {
	case agent.Joining:
		s.joining = e.Time
	case agent.Joined:
		if w.Err != nil {
			took(stepRendezvous, e.Time.Sub(s.joining), w.Err)
			initialized(w.Err)
		}
	case agent.RanksAssigned: // which torch's metrics count among the rendezvous
		took(stepRanks, e.Time.Sub(w.Began), w.Err)
		took(stepRendezvous, e.Time.Sub(s.joining), w.Err)
		if w.Err != nil {
			initialized(w.Err)
		}
	case agent.WorkersStarted:
		took(stepStart, e.Time.Sub(w.Began), w.Err)
		initialized(w.Err)
	case agent.Decided:
		if w.Again && s.restarting.IsZero() {
			s.restarting = w.Since
		}
		if w.Seen != "" {
			took(stepMonitor, 0, nil)
		}
	case agent.WorkersStopped:
		took(stepStop, w.Took, nil)
	case agent.Finished:
		took(stepRun, e.Time.Sub(w.Began), w.Err)
	}
}

// Observer publishes to handlers what an agent does, for agent.Config.Observers: the
// metrics of TorchElastic's agent. Handlers that are nil are left out.
// Source: the prof decorator, put_metric, and the _record_ methods of SimpleElasticAgent.
func Observer(handlers ...Handler) func(agent.Event) {
	handlers = slices.DeleteFunc(slices.Clone(handlers), func(h Handler) bool { return h == nil })
	if len(handlers) == 0 {
		return func(agent.Event) {}
	}
	put := func(name string, value int64) {
		m := Metric{Time: time.Now(), Group: "torchelastic", Name: name, Value: value}
		for _, h := range handlers {
			h.Emit(m)
		}
	}
	watch := &stopwatch{}
	return func(e agent.Event) {
		workers := "workers." + e.Job.Role + "."
		if w, ok := e.What.(agent.Finished); ok && w.Err == nil {
			summary(func(name string, value int64) { put(workers+name, value) },
				w.State() == agent.Failed, e.Job.MaxRestarts, remaining(e.Job, e.Restarts))
		}
		watch.observe(&e, func(step string, d time.Duration, err error) {
			outcome := ".success"
			if err != nil {
				outcome = ".failure"
			}
			put(step+outcome, 1)
			put(step+".duration.ms", d.Milliseconds())
		})
		if w, ok := e.What.(agent.Decided); ok && w.Seen != "" {
			put(workers+"remaining_restarts", int64(remaining(e.Job, e.Restarts)))
			put(workers+strings.ToLower(string(w.Seen)), 1)
		}
	}
}

// remaining is how many more restarts the job may use. Other hosts may have had more than
// this one allows.
func remaining(job *agent.Job, used int) int { return max(0, job.MaxRestarts-used) }

// summary publishes how a run went: its flakiness, and which of torch's kinds it was.
func summary(put func(string, int64), failed bool, maxRestarts, remaining int) {
	put("flakiness", flakiness(failed, maxRestarts, remaining))
	how := map[bool]string{false: "run_success_", true: "run_failed_"}[failed]
	how += map[bool]string{false: "no_retries", true: "with_retries"}[remaining < maxRestarts]
	put("run_total", 1)
	for _, name := range []string{"run_success_with_retries", "run_success_no_retries", "run_failed_with_retries",
		"run_failed_no_retries"} {
		put(name, map[bool]int64{true: 1}[name == how])
	}
}

// flakiness is the share of restarts used, in percent: 0 for a run that needed
// none, 100 for one that failed.
func flakiness(failed bool, maxRestarts, remaining int) int64 {
	if failed {
		return 100
	}
	return int64(100 - 100*float64(remaining+1)/float64(maxRestarts+1))
}
