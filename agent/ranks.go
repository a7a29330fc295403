package agent

import (
	"fmt"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/internal/host/limits"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/rendezvous"
)

// connectionsOfAgent is how many connections an agent has to the one that holds the stores;
// connectionsOfStore are those for a store of its workers that it passes on, in two rounds.
const (
	connectionsOfAgent = 2
	connectionsOfStore = 2
)

// connections is how many the other hosts have to the stores that this one holds.
func connections(round *rendezvous.Info, worldSize, localWorldSize int) int {
	if round.LocalStore {
		return (connectionsOfAgent + connectionsOfStore) * round.WorldSize
	}
	return worldSize - localWorldSize + connectionsOfAgent*round.WorldSize
}

// assignRanks finds this node's ranks and tells the attempt. Only where nodes
// have to exchange them that takes time, and a goroutine.
func (a *Agent) assignRanks(at *attempt) {
	spec, round := &a.cfg.Spec, at.round
	done := func(ranks rendezvous.Ranks, err error) {
		if err != nil {
			err = fmt.Errorf("assign ranks: %w", err)
		} else if round.Rank == 0 && !at.alone() && a.cfg.Rendezvous.UseAgentStore() {
			err = limits.CheckConnections(spec.LocalWorldSize, connections(round, ranks.WorldSize, spec.LocalWorldSize))
		}
		n := news{ev: decide.EvAssigned, ranks: ranks}
		if err != nil {
			n = news{ev: decide.EvAssignFailed, err: err}
		}
		at.send(n)
	}
	switch {
	case round.Ranks != nil:
		done(*round.Ranks, nil)
	case a.cfg.IdenticalWorkers:
		done(a.peers(at).Identical(spec.LocalWorldSize), nil)
	case at.alone():
		done(peers.Alone(spec.Role, spec.LocalWorldSize), nil)
	default:
		at.run.wg.Go(func() {
			ranks, err := a.peers(at).Exchange(at.run.life, spec.Role, spec.LocalWorldSize)
			if at.run.life.Err() == nil {
				done(ranks, err)
			}
		})
	}
}
