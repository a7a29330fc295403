package metrics

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

// A Cause is why a worker ended.
type Cause string

// The causes. They are the label of muster_worker_exits_total, in this order.
const (
	CauseSuccess         Cause = "success"         // it exited 0
	CauseExitCode        Cause = "exit_code"       // it exited otherwise
	CauseSignal          Cause = "signal"          // a signal ended it that the agent had not sent
	CauseOOM             Cause = "oom"             // the kernel killed it for lack of memory
	CauseTimer           Cause = "timer"           // it missed the deadline of a timer
	CauseHang            Cause = "hang"            // it showed no sign of life for --hang-timeout
	CauseStopped         Cause = "stopped"         // the agent stopped it, with its group
	CauseUninterruptible Cause = "uninterruptible" // it was stuck in the kernel
	CauseNotStarted      Cause = "not_started"     // it could not be started
)

var causes = [...]Cause{CauseSuccess, CauseExitCode, CauseSignal, CauseOOM, CauseTimer, CauseHang, CauseStopped, CauseUninterruptible, CauseNotStarted}

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
func (s Stream) Exited(c Cause) {
	if !s.silent() {
		s.own(ownExits+string(c), 1)
	}
}
