package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-run/muster/health"
)

// mostAtOnce is how many agents are asked at the same time.
const mostAtOnce = 32

// A topSource is the agents that a view shows.
type topSource struct {
	jobs []job // at least one; nobody writes to them
}

// answers are what the agents have said.
type answers struct {
	states   []*health.State // in the order in which they were named
	problems []string        // why others are missing
	err      error           // why there is no state at all
}

// ask asks all agents. The first one that answers speaks for the job. It is called by
// one goroutine at a time.
func (s *topSource) ask(ctx context.Context) (a answers) {
	jobs := slices.Clone(s.jobs)
	askAll(ctx, jobs, stateOf{})
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.state == nil:
			a.problems = append(a.problems, j.err.Error())
		case len(a.states) > 0 && j.runID() != a.states[0].Job.RunID:
			a.problems = append(a.problems, fmt.Sprintf("%s is of another job, %s", j.name(), j.runID()))
		default:
			a.states = append(a.states, j.state)
		}
	}
	if len(a.states) == 0 {
		return answers{err: errors.New(strings.Join(a.problems, "\n"))}
	}
	return a
}
