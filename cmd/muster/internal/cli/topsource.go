package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
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
	addrs []string // at least one
	all   bool     // and the other hosts of the round
	begun bool     // they have been asked before
}

// many says whether there may be several agents.
func (s *topSource) many() bool { return s.all || len(s.addrs) > 1 }

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
	states, errs := askAll(ctx, s.addrs)
	a.add(s.addrs, states, errs)
	if len(a.states) == 0 {
		return answers{err: errors.Join(errs...)}
	}
	if s.all {
		if !s.begun && a.nameless() && sleep.For(ctx, nameTime) == nil {
			s.begun = true
			return s.ask(ctx) // to be asked has made the agent look for the names
		}
		addrs := s.others(&a)
		states, errs := askAll(ctx, addrs)
		a.add(addrs, states, errs)
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
	network, address, err := health.ParseAddr(s.addrs[0])
	if err != nil {
		return "", err
	}
	if network != "tcp" {
		return "", fmt.Errorf("--all asks the other hosts at the same port, and %s is a socket; name a port", s.addrs[0])
	}
	_, port, err := net.SplitHostPort(address)
	return port, err
}

// others are the addresses of the round's other hosts.
func (s *topSource) others(a *answers) []string {
	port, err := s.port()
	if err != nil {
		a.problems = append(a.problems, err.Error())
		return nil
	}
	var addrs []string
	for _, h := range a.states[0].Hosts {
		if a.has(h.GroupRank) {
			continue
		}
		if h.Name == "" {
			a.problems = append(a.problems, fmt.Sprintf("the name of host %d is not known (yet)", h.GroupRank))
		} else if len(addrs) < mostAsked {
			addrs = append(addrs, net.JoinHostPort(h.Name, port))
		}
	}
	return addrs
}

// has says whether a host of the round has answered.
func (a *answers) has(groupRank int) bool {
	return groupRank >= 0 && slices.ContainsFunc(a.states, func(s *health.State) bool { return s.Host.GroupRank == groupRank })
}

// add takes in what agents have said. It leaves out agents of other jobs, and a host that
// it has already.
func (a *answers) add(addrs []string, states []*health.State, errs []error) {
	for i, state := range states {
		switch {
		case errs[i] != nil:
			a.problems = append(a.problems, errs[i].Error())
		case len(a.states) > 0 && state.Job.RunID != a.states[0].Job.RunID:
			a.problems = append(a.problems, fmt.Sprintf("the agent at %s is of another job, %s", addrs[i], state.Job.RunID))
		case !a.has(state.Host.GroupRank):
			a.states = append(a.states, state)
		}
	}
}

// askAll asks agents side by side.
func askAll(ctx context.Context, addrs []string) ([]*health.State, []error) {
	states, errs := make([]*health.State, len(addrs)), make([]error, len(addrs))
	slots := make(chan struct{}, mostAtOnce)
	var wg sync.WaitGroup
	for i, addr := range addrs {
		slots <- struct{}{}
		wg.Go(func() {
			states[i], errs[i] = fetchState(ctx, addr)
			<-slots
		})
	}
	wg.Wait()
	return states, errs
}
