package agent

// State is the state of one host's worker group, spelt as TorchElastic prints it.
// Source: WorkerState in elastic/agent/server/api.py.
type State string

const (
	Unknown   State = "UNKNOWN"   // the group cannot be told apart from others
	Init      State = "INIT"      // made, not started
	Healthy   State = "HEALTHY"   // workers run
	Unhealthy State = "UNHEALTHY" // a worker is wedged in the kernel
	Stopped   State = "STOPPED"   // stopped on the way to a new round
	Succeeded State = "SUCCEEDED" // every worker exited 0
	Failed    State = "FAILED"    // a worker failed, or the job was stopped
)

// event is something that happened to the worker group.
type event uint8

const (
	evStarted      event = iota // all workers run
	evStartFailed               // a worker could not be started
	evSucceeded                 // all workers exited 0
	evFailed                    // a worker ended otherwise
	evUnhealthy                 // a worker is stuck in uninterruptible sleep
	evNodesWaiting              // other nodes wait to be admitted
	evSignal                    // the agent was told to stop
)

// action is what the agent does about it.
type action uint8

const (
	actWatch   action = iota // wait for the next event
	actFinish                // exit barrier, then success
	actRestart               // count a restart, then a new round
	actRejoin                // a new round, nothing counted
	actFail                  // report and give up
	actStop                  // stop the workers with the signal received
)

// next decides what to do about ev: the state the group is then in, and the
// action. restartsLeft is how many more restarts the job may use.
//
// A worker that cannot be started is not tried again: whatever is missing will
// be missing the next time. Neither is a group with a worker that cannot be
// killed, which may still hold its GPU.
func next(ev event, restartsLeft int) (State, action) {
	switch ev {
	case evStarted:
		return Healthy, actWatch
	case evSucceeded:
		return Succeeded, actFinish
	case evFailed:
		if restartsLeft > 0 {
			return Stopped, actRestart
		}
		return Failed, actFail
	case evNodesWaiting:
		return Stopped, actRejoin
	case evUnhealthy:
		return Unhealthy, actFail
	case evSignal:
		return Failed, actStop
	case evStartFailed:
		return Failed, actFail
	default:
		return Unknown, actFail
	}
}
