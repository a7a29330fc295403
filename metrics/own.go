package metrics

import (
	"strings"

	"github.com/muster-run/muster/failure"
)

// Names in OwnGroup. Those that end in a dot are completed by a word.
const (
	ownRound     = "round"
	ownNodes     = "nodes"
	ownWorldSize = "world_size"
	ownRestarts  = "restarts"
	ownRejoins   = "rejoins"
	ownState     = "state."
	ownExits     = "exits."
)

// causes are those that a worker may end of. They are the label of
// muster_worker_exits_total, in this order.
var causes = [...]failure.Cause{
	failure.CauseSuccess, failure.CauseExitCode, failure.CauseSignal, failure.CauseOOM, failure.CauseTimer, failure.CauseHang,
	failure.CauseStopped, failure.CauseUninterruptible, failure.CauseNotStarted,
}

// label is a cause as Prometheus gets it.
func label(c failure.Cause) string { return strings.ReplaceAll(string(c), " ", "_") }

// states are the states of a worker group; see agent.State.
var states = [...]string{"UNKNOWN", "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED"}

// own publishes one value in OwnGroup.
func (s Stream) own(name string, value int64) {
	s.Group = OwnGroup
	s.Put(name, value)
}

// Round publishes that this host is in a round: its number, how many nodes and
// how many workers take part in it.
func (s Stream) Round(round, nodes, worldSize int) {
	s.own(ownRound, int64(round))
	s.own(ownNodes, int64(nodes))
	s.own(ownWorldSize, int64(worldSize))
}

// State publishes the state that the worker group has got into, such as
// "HEALTHY".
func (s Stream) State(state string) {
	if !s.silent() {
		s.own(ownState+lower(state), 1)
	}
}

// Restarts publishes how many restarts the job has used.
func (s Stream) Restarts(used int) { s.own(ownRestarts, int64(used)) }

// Rejoined publishes that the workers were stopped for another round, without a
// restart being counted.
func (s Stream) Rejoined() { s.own(ownRejoins, 1) }

// Exited publishes why a worker ended.
func (s Stream) Exited(c failure.Cause) {
	if !s.silent() {
		s.own(ownExits+label(c), 1)
	}
}
