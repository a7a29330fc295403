package jobstate_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health/jobstate"
)

// What an agent serves at /v1/state is read by another program.
func ExampleParse() {
	observer := &jobstate.Observer{} // launch gives its agent one
	job := &agent.Job{RunID: "job7", MaxRestarts: 3}
	observer.Observe(agent.Event{Job: job, What: agent.Joining{}})
	served, err := json.Marshal(observer.State(context.Background()).Shown(nil, jobstate.Others{}))
	if err != nil {
		fmt.Println(err)
		return
	}

	state, err := jobstate.Parse(served)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(state.Job.RunID, state.Job.Phase, state.Job.Runs())
	// Output: job7 rendezvous false
}
