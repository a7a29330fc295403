package agent

import "github.com/muster-run/muster/policy"

// State is the state of one host's worker group, spelt as TorchElastic prints it.
// Source: WorkerState in elastic/agent/server/api.py.
type State string

const (
	Unknown   State = "UNKNOWN"   // TorchElastic's; no group here is in it
	Init      State = "INIT"      // made, not started
	Healthy   State = "HEALTHY"   // workers run
	Unhealthy State = "UNHEALTHY" // a worker is wedged in the kernel
	Stopped   State = "STOPPED"   // stopped on the way to a new round
	Succeeded State = "SUCCEEDED" // every worker exited 0
	Failed    State = "FAILED"    // a worker failed, or the job was stopped
)

// phase is how far an attempt has come on this host. The same event means something else in
// another phase: a lost node is a reason for a new round, but not in failing, because this
// host has announced by then what follows from its own failure. An attempt begins in
// assigning, goes on to running, and from there to one of the others, never back. What
// people see as a phase is coarser: health.Phase.
type phase uint8

const (
	assigning phase = iota // the nodes of the round exchange their ranks
	running                // workers run
	failing                // a worker has failed, the others know, its peers are being stopped
	finished               // this host's workers have succeeded; it waits at the exit barrier
	listening              // workers lost their peers; the agent waits to hear why
)

// event is something that happened to the worker group, or to the job. Whoever sends it has
// found out all that next needs. So there are several events for what looks the same from
// outside: a lost node is evNodeGone, or evDoneNodeGone if its workers had succeeded.
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
	evNoNews                        // the same, and in time no other node has announced a failure
	evUnhealthy                     // a worker is stuck in uninterruptible sleep
	evSignal                        // the agent was told to stop
	evAsked                         // somebody, here or at another node, wants new workers
	evLiveChange                    // the members of a live group are to change (live.go)

	evNodesWaiting    // other nodes wait to be admitted
	evNodeGone        // a node of the round is lost or has left
	evDoneNodeGone    // the same, after its workers had succeeded
	evEvicted         // the others count this node as lost, or may go on without it
	evClosed          // the job was ended elsewhere
	evClosedWhenDone  // the same, by a node whose workers had succeeded
	evDisconnected    // the rendezvous cannot be reached any more
	evPeerRestarts    // another node's workers failed; all start again
	evPeerLive        // the same, or its workers join, and all others go on
	evPeerGaveUp      // the same, and no restarts are left
	evPeerLostHost    // another node stops the job because a host was lost once too often
	evPeerPreempted   // another node was told that the job shall stop
	evBarrierPassed   // all nodes have reached the exit barrier
	evBarrierTimedOut // they have not, in time
	evBarrierOverdue  // the same, but the others need this node
	evBarrierBroken   // the exit barrier does not work
)

// action is what the agent does about it. All but actWatch, actStart, actBarrier, actAnnounce
// and actListen end the attempt, unless another node turns out to have decided first.
type action uint8

const (
	actWatch    action = iota // wait for the next event
	actStart                  // start the workers
	actBarrier                // wait for the other nodes' workers
	actAnnounce               // tell the other nodes of the failure
	actListen                 // wait for word from the other nodes
	actFinish                 // success
	actRestart                // count a restart, then a new round
	actFollow                 // a new round, with the count of the node that failed
	actRejoin                 // a new round, nothing counted
	actFail                   // report and give up
	actStop                   // stop the workers with the signal received, leave the job
	actEnded                  // stop the workers: the job is over
	actAbort                  // stop the workers and return an error
	actPreempt                // stop the workers with the signal that another node received
	actDepart                 // leave the job, which goes on without this host
	actGiveUp                 // stop the workers: a host was lost once too often
)

// isElsewhere reports whether an event is about what the other nodes do with the round. A host
// that has announced its own failure has said what follows, and none of these events
// changes it. The loss of the rendezvous and a preemption do.
func (ev event) isElsewhere() bool {
	switch ev {
	case evNodesWaiting, evNodeGone, evDoneNodeGone, evEvicted, evClosed, evClosedWhenDone,
		evPeerRestarts, evPeerLive, evPeerGaveUp, evPeerLostHost, evAsked, evLiveChange:
		return true
	}
	return false
}

// isChange reports whether the workers of this host, which have not failed, start again
// with other nodes.
func (ev event) isChange() bool { return ev == evNodesWaiting || ev == evNodeGone || ev == evEvicted }

// isFailure reports whether this host's workers have failed and have all ended.
func (ev event) isFailure() bool {
	return ev == evFailed || ev == evNoNews || ev == evStartFailed || ev == evUnhealthy
}

// next decides what to do about ev in a phase: the state that the group is in then, and the
// action. It gets all that it needs to know: restartsLeft is how many more restarts the job
// may use, verdict what the restart policy says of the event; "" without a policy and where
// no rule applies.
//
// Without a verdict a worker that cannot be started is not tried again: what is missing now
// will be missing the next time. A group with a worker that cannot be killed is never
// started again, since that worker may still hold its GPU; a rule can only make this host
// leave.
//
// A host whose workers have succeeded goes where the others go: into a new round if they
// begin one, because they cannot train without it. It succeeds if the job ends and no node
// has announced a failure.
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
		return Failed, actAnnounce
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
	case evAsked, evLiveChange, evPeerLive: // the last two where the workers cannot go on as they are
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
