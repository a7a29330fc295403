package agent

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/decide"
)

// Stopping says that the context of Run is about to be canceled: until then a host that hears that the
// job has ended without it does not end.
func (a *Agent) Stopping() { a.stopping.Store(true) }

// Restart asks for new workers on all nodes: they stop theirs and meet in a new round, as when a
// node joins. No restart is counted. by is the host on which somebody wants it, for the log.
// Restart returns when the agent has taken that in; it is an error if no workers of this host run.
// Restart and Signal may be called concurrently, also before and after Run.
func (a *Agent) Restart(by string) error {
	a.published.mu.Lock()
	at, group, exits := a.published.at, a.published.group, a.published.exits
	a.published.mu.Unlock()
	if group == nil || exits != nil {
		return errNoWorkers
	}
	at.send(news{ev: decide.EvAsked, host: by})
	return nil
}

// errNoWorkers is the answer to a request that is about the workers.
var errNoWorkers = errors.New("no workers of this host run at the moment")

// Signal sends sig to the workers of this host that run or, if rank is not negative, to the
// one with this global rank. It returns those that it was sent to; it is an error if there are
// none.
func (a *Agent) Signal(sig syscall.Signal, rank int) (sent []Worker, err error) {
	a.published.mu.Lock()
	group := a.published.group
	a.published.mu.Unlock()
	var ranks []int
	for _, w := range a.Workers() {
		ranks = append(ranks, w.Rank)
		if group != nil && (rank < 0 || w.Rank == rank) && group.Signal(w.LocalRank, sig) {
			sent = append(sent, w)
		}
	}
	switch {
	case sent != nil:
		return sent, nil
	case rank >= 0 && ranks != nil:
		return nil, fmt.Errorf("rank %d does not run on this host at the moment; choose from %s", rank,
			text.Ranges(ranks, ","))
	}
	return nil, errNoWorkers
}
