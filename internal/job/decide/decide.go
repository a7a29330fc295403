// Package decide is the pure half of package agent: what an agent does about an event. Next depends
// on its arguments alone, and testdata/scenarios has every case with its answer: the order of the
// cases matters, that of the events does not (agent/watch.go has it). The agent finds out the facts,
// and carries out the action; the lab in rendezvous/internal/simulate does so for agents of its own.
package decide

// State is agent.State.
// Source: WorkerState in elastic/agent/server/api.py.
type State string

const (
	Unknown   State = "UNKNOWN"
	Init      State = "INIT"
	Healthy   State = "HEALTHY"
	Unhealthy State = "UNHEALTHY"
	Stopped   State = "STOPPED"
	Succeeded State = "SUCCEEDED"
	Failed    State = "FAILED"
)

// Phase is how far an attempt has come on this host. The same event means something else in
// another phase: a lost node is a reason for a new round, but not in Failing, because this
// host has announced by then what follows from its own failure. An attempt begins in
// Assigning, proceeds to Running, and from there to one of the others, never back. What
// people see as a phase is coarser: jobstate.Phase.
type Phase string

const (
	Assigning Phase = "assigning" // the nodes of the round exchange their ranks
	Running   Phase = "running"   // workers run
	Failing   Phase = "failing"   // a worker has failed, the others know, its peers are being stopped
	Finished  Phase = "finished"  // this host's workers have succeeded; it waits at the exit barrier
	Listening Phase = "listening" // workers lost their peers; the agent waits to hear why
)

// Event is something that happened to the worker group, or to the job. Its sender has found
// out what it means, but for the Facts. So there are several events for what looks
// the same from outside: a lost node is EvNodeGone, or EvDoneNodeGone if its workers had succeeded.
type Event string

const (
	EvAssigned     Event = "ranks assigned"        // this host has its ranks
	EvAssignFailed Event = "ranks not assigned"    // it did not get them
	EvStarted      Event = "workers started"       // all workers run
	EvStartFailed  Event = "workers not started"   // a worker could not be started
	EvSucceeded    Event = "workers succeeded"     // all workers exited 0
	EvFailing      Event = "worker failed"         // a worker ended otherwise, its peers may still run
	EvFailed       Event = "workers failed"        // all have ended, one of them otherwise
	EvLostPeers    Event = "workers lost peers"    // workers failed because they lost connections to others
	EvNoNews       Event = "no news of a failure"  // the same, and in time no other node has announced a failure
	EvUnhealthy    Event = "worker stuck"          // a worker is stuck in uninterruptible sleep
	EvSignal       Event = "signal"                // the agent was told to stop
	EvAsked        Event = "new workers asked for" // by somebody, here or at another node
	EvLiveChange   Event = "live change"           // the members of a live group are to change (agent/live_round.go)

	EvNodesWaiting    Event = "nodes waiting"          // other nodes wait to be admitted
	EvNodeGone        Event = "node gone"              // a node of the round is lost or has left
	EvDoneNodeGone    Event = "finished node gone"     // the same, after its workers had succeeded
	EvEvicted         Event = "evicted"                // the others count this node as lost, or may continue without it
	EvClosed          Event = "job closed"             // the job was ended elsewhere
	EvClosedWhenDone  Event = "job closed when done"   // the same, by a node whose workers had succeeded
	EvDisconnected    Event = "disconnected"           // the rendezvous cannot be reached any more
	EvPeerRestarts    Event = "peer restarts"          // another node's workers failed; all start again
	EvPeerLive        Event = "peer live change"       // the same, or its workers join, and all others continue
	EvPeerGaveUp      Event = "peer gave up"           // the same, and no restarts are left
	EvPeerLostHost    Event = "peer lost host"         // another node stops the job: a host was lost too often
	EvPeerPreempted   Event = "peer preempted"         // another node was told that the job must stop
	EvBarrierPassed   Event = "exit barrier passed"    // all nodes have reached it
	EvBarrierTimedOut Event = "exit barrier timed out" // they have not, in time
	EvBarrierOverdue  Event = "exit barrier overdue"   // the same, but the others need this node
	EvBarrierBroken   Event = "exit barrier broken"    // it does not work
)

// Action is what the agent does about it.
type Action string

// These actions let the attempt continue.
const (
	ActWatch         Action = "watch"          // wait for the next event
	ActStart         Action = "start"          // start the workers
	ActBarrier       Action = "enter barrier"  // wait for the other nodes' workers
	ActStopOthers    Action = "stop others"    // have the other workers end, of which one may have failed first
	ActAnnounceLater Action = "announce later" // the same; look again when the rest of stderr should be there
	ActAnnounce      Action = "announce"       // the same; tell other nodes that all start again, or this one leaves
	ActAnnounceFinal Action = "announce final" // the same; tell them that the job has failed
	ActListen        Action = "listen"         // wait for word from the other nodes
)

// These let it continue, too, and only workers that can change their group know them.
const (
	ActLookAgain Action = "look again" // look at the failure again when the rest of stderr should be there
	ActReplace   Action = "replace"    // start another worker in place of one that was not in the group yet
	ActSchedule  Action = "schedule"   // have the node with rank 0 choose the step at which all pause
	ActIgnore    Action = "ignore"     // the training has ended, or no worker is left: continue without
	ActInterrupt Action = "interrupt"  // the same; break off what the workers may wait for
)

// These end the attempt, unless another node turns out to have decided first.
const (
	ActKeep    Action = "keep"    // pause the workers, and take them into a new round
	ActReturn  Action = "return"  // stop what is left, and start workers in a round in which others' continue
	ActFinish  Action = "finish"  // success
	ActRestart Action = "restart" // count a restart, then a new round
	ActFollow  Action = "follow"  // a new round, with the count of the node that failed
	ActRejoin  Action = "rejoin"  // a new round, nothing counted
	ActFail    Action = "fail"    // report and give up
	ActStop    Action = "stop"    // stop the workers with the signal received, leave the job
	ActEnded   Action = "ended"   // stop the workers: the job is over
	ActAbort   Action = "abort"   // stop the workers and return an error
	ActPreempt Action = "preempt" // stop the workers with the signal that another node received
	ActDepart  Action = "depart"  // leave the job, which continues without this host
	ActGiveUp  Action = "give up" // stop the workers: a host was lost once too often
)

// IsLive reports whether only workers that can change their group know an action. They stay
// Healthy, and observers hear of what becomes of them (Resting, Reconfigured).
func (act Action) IsLive() bool {
	switch act {
	case ActLookAgain, ActReplace, ActSchedule, ActIgnore, ActInterrupt, ActKeep, ActReturn:
		return true
	}
	return false
}

// Verdict is a policy.Action: what a restart policy says of an event.
type Verdict string

const (
	Retry Verdict = "retry"
	Stop  Verdict = "stop"
	Drain Verdict = "drain"
)

// Facts is what Next has to know beside an event and the phase. Agent.facts finds them out.
type Facts struct {
	RestartsLeft int     // how many more restarts the job may use
	Verdict      Verdict // what the restart policy says of the event; "" without one, and where no rule applies
	Alone        bool    // no other node is in the round

	// Of a worker's failure (EvFailing):
	Follows   bool // another failure, here or on another host, may be the reason
	Silent    bool // the worker has written nothing that explains it, so far
	Unsettled bool // more of its stderr could make another rule of the policy decide

	// Of workers that can change their group; all are false without --live, and all but Over are
	// false unless workers run:
	Live    bool // this host's are to be, or are, such a group
	Formed  bool // they are: each has had a place in it
	Pending bool // their places in this round are not known yet
	Left    bool // some have not failed
	Member  bool // the one that failed had a place, or cannot be replaced
	All     bool // the policy has its failure end more than this worker
	Over    bool // the training has ended: no worker is needed any more, nor a host

	// Of a change of the set of nodes, or of another node's record:
	Joins   bool // hosts join; otherwise they wait because of a loss
	Holder  bool // the node that is gone held the rendezvous and the store
	Awaited bool // workers here may wait for those of the node that is gone
	Drained bool // the other node leaves the job
}

// isElsewhere reports whether an event is about what the other nodes do with the round. A host
// that has announced its own failure has said what follows, and none of these events
// changes it. The loss of the rendezvous and a preemption do.
func (ev Event) isElsewhere() bool {
	switch ev {
	case EvNodesWaiting, EvNodeGone, EvDoneNodeGone, EvEvicted, EvClosed, EvClosedWhenDone,
		EvPeerRestarts, EvPeerLive, EvPeerGaveUp, EvPeerLostHost, EvAsked, EvLiveChange:
		return true
	}
	return false
}

// IsChange reports whether the workers of this host, which have not failed, start again
// with other nodes.
func (ev Event) IsChange() bool { return ev == EvNodesWaiting || ev == EvNodeGone || ev == EvEvicted }

// IsFailure reports whether this host's workers have failed and have all ended.
func (ev Event) IsFailure() bool {
	return ev == EvFailed || ev == EvNoNews || ev == EvStartFailed || ev == EvUnhealthy
}

// Next decides what to do about ev in a phase: the state that the group is in then, and the
// action. It decides everything that an agent does about an event; what it returns depends on
// its arguments alone.
//
// Without a verdict a worker that cannot be started is not tried again: what is missing now
// will be missing the next time. A group with a worker that cannot be killed is never
// started again, since that worker may still hold its GPU; a rule can only make this host
// leave.
//
// A host whose workers have succeeded goes where the others go: into a new round if they
// begin one, because they cannot train without it. It succeeds if the job ends and no node
// has announced a failure.
func Next(ev Event, ph Phase, f Facts) (State, Action) {
	if ph == Failing && ev.isElsewhere() {
		return ph.state(), ActWatch
	}
	if act := nextLive(ev, ph, &f); act != "" {
		return ph.state(), act
	}
	switch ev {
	case EvAssigned:
		return Init, ActStart
	case EvStarted:
		return Healthy, ActWatch
	case EvSucceeded:
		if f.Alone {
			return Succeeded, ActFinish
		}
		return Succeeded, ActBarrier
	case EvFailing:
		return Failed, announcement(ph, &f)
	case EvLostPeers:
		return Failed, ActListen
	case EvFailed, EvNoNews, EvStartFailed, EvUnhealthy:
		return afterFailure(ev, &f)
	case EvNodesWaiting, EvNodeGone, EvEvicted:
		if f.Verdict == Stop {
			return Failed, ActGiveUp
		}
		return Stopped, ActRejoin
	case EvAsked, EvLiveChange, EvPeerLive:
		return Stopped, ActRejoin
	case EvPeerRestarts:
		return Stopped, ActFollow
	case EvDoneNodeGone, EvBarrierOverdue:
		return ph.state(), ActWatch
	case EvBarrierPassed, EvBarrierTimedOut, EvBarrierBroken:
		return Succeeded, ActFinish
	case EvSignal:
		return Failed, ActStop
	case EvPeerPreempted:
		return Failed, ActPreempt
	case EvPeerGaveUp:
		return Failed, ActFail
	case EvPeerLostHost:
		return Failed, ActGiveUp
	case EvAssignFailed:
		return Failed, ActAbort
	case EvClosed, EvClosedWhenDone, EvDisconnected:
		switch {
		case ph == Finished:
			return Succeeded, ActFinish
		case ev == EvClosedWhenDone:
			return ph.state(), ActWatch
		case ev == EvDisconnected:
			return Failed, ActAbort
		}
		return Failed, ActEnded
	}
	return Unknown, ActFail
}

// afterFailure decides what follows when this host's workers have failed and have ended.
func afterFailure(ev Event, f *Facts) (State, Action) {
	switch {
	case f.Verdict == Drain:
		return Failed, ActDepart
	case ev == EvUnhealthy:
		return Unhealthy, ActFail
	case f.Verdict == Retry, f.Verdict == "" && ev != EvStartFailed && f.RestartsLeft > 0:
		return Stopped, ActRestart
	}
	return Failed, ActFail
}

// announcement decides what the other nodes learn of a worker's failure before its peers have
// ended. What follows from the failure is decided here: the end of the peers changes nothing in it.
func announcement(ph Phase, f *Facts) Action {
	_, then := afterFailure(EvFailed, f)
	switch {
	case ph != Running:
		return ActWatch // they know already
	case f.Follows:
		return ActStopOthers
	case f.Silent || f.Unsettled:
		return ActAnnounceLater
	case then == ActFail:
		return ActAnnounceFinal
	}
	return ActAnnounce
}

// nextLive decides where workers that can change their group do not start again, as others
// would; "" elsewhere.
//
// Workers that are left continue in a new round (ActKeep); a host that has none left takes part
// with new ones (ActReturn). That is no answer to a failure for which the policy starts all again,
// and none if no worker would be left and none may be replaced.
//
// Once the training has ended no host is needed any more, nor a worker that had no place in the
// group, and nothing begins again.
func nextLive(ev Event, ph Phase, f *Facts) Action {
	mayReplace := f.Formed && !f.Over && !f.All && f.RestartsLeft > 0
	switch ev {
	case EvFailing:
		switch {
		case f.Over && !f.Member:
			return ActIgnore
		case f.Formed && f.Unsettled:
			return ActLookAgain
		case mayReplace && !f.Member:
			return ActReplace
		case f.Formed && !f.Over && !f.All && f.Left:
			return ActKeep
		case mayReplace && !f.Alone:
			return ActReturn
		}
	case EvFailed, EvLostPeers:
		if mayReplace && !f.Alone {
			return ActReturn
		}
	case EvPeerLive:
		return f.newRound()
	case EvPeerRestarts:
		if f.Formed && f.Drained {
			return f.newRound()
		}
	case EvLiveChange:
		if f.Over || f.Formed && !f.Left { // the end of the workers is news, too
			return ActIgnore
		}
		return f.newRound()
	case EvNodesWaiting:
		switch {
		case f.Over && f.Joins:
			return ActIgnore
		case f.Formed && f.Joins && !f.Pending:
			return ActSchedule
		case f.Formed && f.Verdict != Stop:
			return f.newRound()
		}
	case EvNodeGone, EvEvicted, EvDisconnected:
		switch {
		case f.Over && ph == Finished && (ev != EvNodeGone || f.Holder):
			return ActFinish // the exit barrier cannot be passed any more
		case f.Over && f.Awaited:
			return ActInterrupt
		case f.Over:
			return ActIgnore
		case f.Formed && f.Verdict != Stop && ev != EvDisconnected:
			return f.newRound()
		}
	}
	return ""
}

// newRound decides how a host takes part in a new round of a live job; "" if its workers start
// again, as without --live.
func (f *Facts) newRound() Action {
	switch {
	case f.Formed && (f.Left || f.Over):
		return ActKeep
	case f.Live:
		return ActReturn
	}
	return ""
}

// state is the state of a group while nothing new has happened.
func (ph Phase) state() State {
	switch ph {
	case Running:
		return Healthy
	case Finished:
		return Succeeded
	case Listening, Failing:
		return Failed
	}
	return Init
}
