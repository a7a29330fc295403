package metrics

import (
	"time"

	"github.com/muster-run/muster/agent"
)

// Observer publishes to h what an agent does, for agent.Config.Observers: the metrics of
// TorchElastic's agent.
func Observer(h Handler) func(agent.Event) { return (&observer{Stream: Stream{Handler: h}}).observe }

// observer is what the metrics need to remember. The events that it looks at come from
// one goroutine.
type observer struct {
	Stream
	joining    time.Time // when this host began to join the round
	restarting time.Time // when it was clear that another round is due; zero in the first
}

func (o *observer) observe(e agent.Event) {
	switch w := e.What.(type) {
	case agent.Joining:
		o.joining = e.Time
	case agent.Joined:
		if w.Err != nil {
			o.Took(StepRendezvous, e.Time.Sub(o.joining), w.Err)
			o.initialized(e.Time, w.Err)
		}
	case agent.RanksAssigned: // which torch's metrics count among the rendezvous
		o.Took(AssignWorkerRanks, e.Time.Sub(w.Began), w.Err)
		o.Took(StepRendezvous, e.Time.Sub(o.joining), w.Err)
		if w.Err != nil {
			o.initialized(e.Time, w.Err)
		}
	case agent.WorkersStarted:
		o.Took(StartWorkers, e.Time.Sub(w.Began), w.Err)
		o.initialized(e.Time, w.Err)
	case agent.Decided:
		if w.Again && o.restarting.IsZero() {
			o.restarting = w.Since
		}
	case agent.WorkersSeen:
		o.Took(MonitorWorkers, 0, nil)
		o.Tick(e.Job.Role, w.RestartsLeft, string(w.State))
	case agent.WorkersStopped:
		o.Took(StopWorkers, w.Took, nil)
	case agent.Finished:
		if w.Err == nil {
			o.Summary(e.Job.Role, w.State() == agent.Failed, e.Job.MaxRestarts, e.Job.MaxRestarts-e.Restarts)
		}
		o.Took(Run, e.Time.Sub(w.Began), w.Err)
	}
}

// initialized publishes the end of what began when this host joined the round, and of
// the restart that it may have been part of.
func (o *observer) initialized(now time.Time, err error) {
	o.Took(InitializeWorkers, now.Sub(o.joining), err)
	if !o.restarting.IsZero() {
		o.Took(RestartWorkers, now.Sub(o.restarting), err)
		o.restarting = time.Time{}
	}
}
