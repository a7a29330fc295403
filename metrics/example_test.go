package metrics_test

import (
	"fmt"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/metrics"
)

// chosen is a handler of one's own. It takes the metric that it wants.
type chosen struct{}

func (chosen) Emit(m metrics.Metric) {
	if m.Name == "workers.trainer.flakiness" {
		fmt.Println(m.Group, m.Name, m.Value)
	}
}

// TorchElastic's metrics of a job. The observer is one of agent.Config.Observers, so an agent
// tells it everything; here it is told how a job ended.
func ExampleObserver() {
	observe := metrics.Observer(chosen{})
	observe(agent.Event{
		Job: &agent.Job{Role: "trainer", MaxRestarts: 3}, Restarts: 1,
		What: agent.Finished{Result: &agent.Result{State: agent.Succeeded}},
	})
	// Output: torchelastic workers.trainer.flakiness 25
}
