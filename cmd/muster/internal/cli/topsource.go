package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/sleep"
)

const (
	// mostAsked is how many agents are asked, mostAtOnce how many at the same time.
	mostAsked  = 256
	mostAtOnce = 32
	// nameTime is how long an agent may need to learn the names of other hosts.
	nameTime = 300 * time.Millisecond
)

// A topSource is the agents that a view shows.
type topSource struct {
	jobs  []job // at least one; nobody writes to them
	all   bool  // and the other hosts of the round
	begun bool  // they have been asked before
}

// many says whether there may be several agents.
func (s *topSource) many() bool { return s.all || len(s.jobs) > 1 }

// answers are what the agents have said.
type answers struct {
	states   []*health.State // by group rank, but the one that speaks for the job first
	problems []string        // why others are missing
	err      error           // why there is no state at all
}

// ask asks all agents. The first one that answers speaks for the job. It is called by
// one goroutine at a time.
func (s *topSource) ask(ctx context.Context) answers {
	var a answers
	a.add(ctx, s.jobs)
	if len(a.states) == 0 {
		return answers{err: errors.New(strings.Join(a.problems, "\n"))}
	}
	if s.all {
		if !s.begun && a.nameless() && sleep.For(ctx, nameTime) == nil {
			s.begun = true
			return s.ask(ctx) // to be asked has made the agent look for the names
		}
		a.add(ctx, s.others(&a))
	}
	slices.SortStableFunc(a.states[1:], func(x, y *health.State) int { return cmp.Compare(x.Host.GroupRank, y.Host.GroupRank) })
	return a
}

// nameless says whether the names of hosts are missing.
func (a *answers) nameless() bool {
	return slices.ContainsFunc(a.states[0].Hosts, func(h health.Host) bool { return h.Name == "" })
}

// port is the one at which all agents listen.
func (s *topSource) port() (string, error) {
	network, address, err := health.ParseAddr(s.jobs[0].addr)
	if err != nil || network != "tcp" {
		return "", fmt.Errorf("--all asks the other hosts at the port of this one, and %s has none; name a port, as --health-addr has it", s.jobs[0].name())
	}
	_, port, err := net.SplitHostPort(address)
	return port, err
}

// others are the round's other hosts.
func (s *topSource) others(a *answers) (jobs []job) {
	port, err := s.port()
	if err != nil {
		a.problems = append(a.problems, err.Error())
		return nil
	}
	for _, h := range a.states[0].Hosts {
		if a.has(h.GroupRank) {
			continue
		}
		if h.Name == "" {
			a.problems = append(a.problems, fmt.Sprintf("the name of host %d is not known (yet)", h.GroupRank))
		} else if len(jobs) < mostAsked {
			jobs = append(jobs, job{addr: net.JoinHostPort(h.Name, port)})
		}
	}
	return jobs
}

// has says whether a host of the round has answered.
func (a *answers) has(groupRank int) bool {
	return groupRank >= 0 && slices.ContainsFunc(a.states, func(s *health.State) bool { return s.Host.GroupRank == groupRank })
}

// add takes in what agents say. It leaves out agents of other jobs, and a host that it has
// already.
func (a *answers) add(ctx context.Context, jobs []job) {
	jobs = slices.Clone(jobs)
	askAll(ctx, jobs, true)
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.state == nil:
			a.problems = append(a.problems, j.err.Error())
		case len(a.states) > 0 && j.runID() != a.states[0].Job.RunID:
			a.problems = append(a.problems, fmt.Sprintf("%s is of another job, %s", j.name(), j.runID()))
		case !a.has(j.state.Host.GroupRank):
			a.states = append(a.states, j.state)
		}
	}
}
