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

// phase is how far an attempt has come on this host.
type phase uint8

const (
	assigning phase = iota // the nodes of the round exchange their ranks
	running                // workers run
	failing                // a worker has failed, the others know, its peers are being stopped
	finished               // this host's workers have succeeded; it waits at the exit barrier
	bereft                 // workers lost their peers; the agent waits to hear why
)

// event is something that happened to the worker group, or to the job.
type event uint8

const (
	evAssigned     event = iota + 1 // this host has its ranks
	evAssignFailed                  // it did not get them
	evStarted                       // all workers run
	evStartFailed                   // a worker could not be started
	evSucceeded                     // all workers exited 0
	evFailing                       // a worker ended otherwise, its peers are being stopped
	evFailed                        // all have ended, one of them otherwise
	evLostPeers                     // workers failed since they lost connections to others
	evNoNews                        // and nobody said why
	evUnhealthy                     // a worker is stuck in uninterruptible sleep
	evSignal                        // the agent was told to stop

	evNodesWaiting    // other nodes wait to be admitted
	evNodeGone        // a node of the round is lost or has left
	evDoneNodeGone    // the same, after its workers had succeeded
	evEvicted         // the others count this node as lost, or may go on without it
	evClosed          // the job was ended elsewhere
	evClosedWhenDone  // the same, by a node whose workers had succeeded
	evDisconnected    // the rendezvous cannot be reached any more
	evPeerRestarts    // another node's workers failed; all start again
	evPeerGaveUp      // the same, and no restarts are left
	evPeerPreempted   // another node was told that the job shall stop
	evBarrierPassed   // all nodes have reached the exit barrier
	evBarrierTimedOut // they have not, in time
	evBarrierOverdue  // the same, and they need this node
	evBarrierBroken   // the exit barrier does not work
)

// action is what the agent does about it.
type action uint8

const (
	actWatch   action = iota // wait for the next event
	actStart                 // start the workers
	actBarrier               // wait for the other nodes' workers
	actTell                  // tell the other nodes of the failure
	actListen                // wait for word from the other nodes
	actFinish                // success
	actRestart               // count a restart, then a new round
	actFollow                // a new round, with the count of the node that failed
	actRejoin                // a new round, nothing counted
	actFail                  // report and give up
	actStop                  // stop the workers with the signal received, leave the job
	actEnded                 // stop the workers: the job is over
	actAbort                 // stop the workers and return an error
	actDrain                 // stop the workers with the signal that another node received
	actDepart                // leave the job, which goes on without this host
	actGiveUp                // stop the workers: a host was lost once too often
)

// next decides what to do about ev in a phase: the state that the group is then
// in, and the action. restartsLeft is how many more restarts the job may use.
//
// A worker that cannot be started is not tried again: whatever is missing will
// be missing the next time. Neither is a group with a worker that cannot be
// killed, which may still hold its GPU.
//
// A host whose workers have succeeded goes where the others go: into a new
// round if they start one, since they cannot train without it. It succeeds if
// the job ends without saying that it failed. One that has told the others of
// its failure has said what follows; nothing that they do changes it.
func next(ev event, ph phase, restartsLeft int) (State, action) {
	if ph == failing && ev >= evNodesWaiting && ev <= evPeerGaveUp && ev != evDisconnected {
		return ph.state(), actWatch
	}
	switch ev {
	case evAssigned:
		return Init, actStart
	case evStarted:
		return Healthy, actWatch
	case evSucceeded:
		return Succeeded, actBarrier
	case evFailing:
		return Failed, actTell
	case evLostPeers:
		return Failed, actListen
	case evFailed, evNoNews:
		if restartsLeft > 0 {
			return Stopped, actRestart
		}
		return Failed, actFail
	case evNodesWaiting, evNodeGone, evEvicted:
		return Stopped, actRejoin
	case evPeerRestarts:
		return Stopped, actFollow
	case evDoneNodeGone, evBarrierOverdue:
		return ph.state(), actWatch
	case evBarrierPassed, evBarrierTimedOut, evBarrierBroken:
		return Succeeded, actFinish
	case evUnhealthy:
		return Unhealthy, actFail
	case evSignal:
		return Failed, actStop
	case evPeerPreempted:
		return Failed, actDrain
	case evStartFailed, evPeerGaveUp:
		return Failed, actFail
	case evAssignFailed:
		return Failed, actAbort
	}
	switch { // the end of the rendezvous
	case ev == evClosedWhenDone && ph != finished:
		return ph.state(), actWatch
	case ev < evClosed || ev > evDisconnected:
		return Unknown, actFail
	case ph == finished:
		return Succeeded, actFinish
	case ev == evDisconnected:
		return Failed, actAbort
	}
	return Failed, actEnded
}

// state is the state of a group while nothing new has happened.
func (ph phase) state() State {
	switch ph {
	case running:
		return Healthy
	case finished:
		return Succeeded
	case bereft, failing:
		return Failed
	}
	return Init
}
