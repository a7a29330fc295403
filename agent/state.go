package agent

import "github.com/muster-run/muster/policy"

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

// phase is how far an attempt has come on this host. The same event means something
// else in another phase: a node that is lost is a reason for a new round, but not in
// failing, for this host has said by then what follows from its own failure. From
// assigning an attempt goes on to running, and from there to one of the others.
type phase uint8

const (
	assigning phase = iota // the nodes of the round exchange their ranks
	running                // workers run
	failing                // a worker has failed, the others know, its peers are being stopped
	finished               // this host's workers have succeeded; it waits at the exit barrier
	listening              // workers lost their peers; the agent waits to hear why
)

// event is something that happened to the worker group, or to the job. Who observes it
// finds out all that next needs to tell it apart from its like, so that there are several
// for what looks the same from outside: a node that is lost may have been done.
type event uint8

const (
	evAssigned     event = iota + 1 // this host has its ranks
	evAssignFailed                  // it did not get them
	evStarted                       // all workers run
	evStartFailed                   // a worker could not be started
	evSucceeded                     // all workers exited 0
	evFailing                       // a worker ended otherwise, its peers are being stopped
	evFailed                        // all have ended, one of them otherwise
	evLostPeers                     // workers failed because they lost connections to others
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
	evPeerLostHost    // another node stops the job because a host was lost once too often
	evPeerPreempted   // another node was told that the job shall stop
	evBarrierPassed   // all nodes have reached the exit barrier
	evBarrierTimedOut // they have not, in time
	evBarrierOverdue  // the same, and they need this node
	evBarrierBroken   // the exit barrier does not work
)

// action is what the agent does about it. All but actWatch, actStart, actBarrier, actTell
// and actListen end the attempt, unless another node turns out to have decided first.
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
	actPreempt               // stop the workers with the signal that another node received
	actDepart                // leave the job, which goes on without this host
	actGiveUp                // stop the workers: a host was lost once too often
)

// isElsewhere says whether an event is about what the other nodes do with the round.
// A host that has told them of its own failure has said what follows, so none of this
// changes it. The loss of the rendezvous, and the order to stop the job, do.
func (ev event) isElsewhere() bool {
	switch ev {
	case evNodesWaiting, evNodeGone, evDoneNodeGone, evEvicted, evClosed, evClosedWhenDone, evPeerRestarts, evPeerGaveUp, evPeerLostHost:
		return true
	}
	return false
}

// isChange says whether the workers of this host, which have not failed, start again
// with other nodes.
func (ev event) isChange() bool { return ev == evNodesWaiting || ev == evNodeGone || ev == evEvicted }

// isFailure says whether this host's workers have failed and have all ended.
func (ev event) isFailure() bool {
	return ev == evFailed || ev == evNoNews || ev == evStartFailed || ev == evUnhealthy
}

// next decides what to do about ev in a phase: the state that the group is then
// in, and the action. All that it needs to know was gathered before: restartsLeft is
// how many more restarts the job may use, verdict what the restart policy says of the
// event, empty if there is none or no rule applies.
//
// Without a verdict a worker that cannot be started is not tried again: whatever is
// missing will be missing the next time. A group with a worker that cannot be killed,
// which may still hold its GPU, is never started again; all that a rule can do is to
// make this host leave.
//
// A host whose workers have succeeded goes where the others go: into a new
// round if they start one, because they cannot train without it. It succeeds if
// the job ends without saying that it failed.
func next(ev event, ph phase, restartsLeft int, verdict policy.Action) (State, action) {
	if ph == failing && ev.isElsewhere() {
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
	case evFailed, evNoNews, evStartFailed, evUnhealthy:
		switch {
		case verdict == policy.Drain:
			return Failed, actDepart
		case ev == evUnhealthy:
			return Unhealthy, actFail
		case verdict == policy.Retry, verdict == "" && ev != evStartFailed && restartsLeft > 0:
			return Stopped, actRestart
		}
		return Failed, actFail
	case evNodesWaiting, evNodeGone, evEvicted:
		if verdict == policy.Stop {
			return Failed, actGiveUp
		}
		return Stopped, actRejoin
	case evPeerRestarts:
		return Stopped, actFollow
	case evDoneNodeGone, evBarrierOverdue:
		return ph.state(), actWatch
	case evBarrierPassed, evBarrierTimedOut, evBarrierBroken:
		return Succeeded, actFinish
	case evSignal:
		return Failed, actStop
	case evPeerPreempted:
		return Failed, actPreempt
	case evPeerGaveUp:
		return Failed, actFail
	case evPeerLostHost:
		return Failed, actGiveUp
	case evAssignFailed:
		return Failed, actAbort
	case evClosed, evClosedWhenDone, evDisconnected:
		switch {
		case ph == finished:
			return Succeeded, actFinish
		case ev == evClosedWhenDone:
			return ph.state(), actWatch
		case ev == evDisconnected:
			return Failed, actAbort
		}
		return Failed, actEnded
	}
	return Unknown, actFail
}

// state is the state of a group while nothing new has happened.
func (ph phase) state() State {
	switch ph {
	case running:
		return Healthy
	case finished:
		return Succeeded
	case listening, failing:
		return Failed
	}
	return Init
}
