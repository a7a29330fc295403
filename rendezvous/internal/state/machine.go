package state

import (
	"slices"
	"time"
)

// rollbackPeriod is how long after its deadline a node still tries to take itself
// out of the state.
const rollbackPeriod = 5 * time.Second

// Rules are the numbers that decisions depend on.
type Rules struct {
	MinNodes, MaxNodes int
	LastCall           time.Duration
	KeepAliveInterval  time.Duration
}

// An Action is what a node does about a state.
// Source: _Action in dynamic_rendezvous.py.
type Action uint8

const (
	Sync      Action = iota // wait for what others do
	Finish                  // the operation has come to its end
	KeepAlive               // renew the node's heartbeat
	AddToParticipants
	AddToWaitList
	AddToRedundancyList
	RemoveFromParticipants
	RemoveFromWaitList
	RemoveFromRedundancyList // and begin the join's time limit anew
	MarkComplete
	MarkClosed
	FailClosed    // end with ErrClosed
	FailRedundant // end with ErrRedundant
	FailTimeout   // end with a *TimeoutError
)

var actionNames = [...]string{
	"sync", "finish", "keep alive", "add to participants", "add to wait list", "add to redundancy list",
	"remove from participants", "remove from wait list", "remove from redundancy list",
	"mark complete", "mark closed", "fail: closed", "fail: redundant", "fail: timeout",
}

func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "unknown"
}

// Join decides what a node does next to take part in a round; deadline is the end
// of its patience.
// Source: _RendezvousJoinOp.
func (s *State) Join(me Node, r Rules, now, deadline time.Time) Action {
	_, participant := s.Participants[me]
	waiting, redundant := s.WaitList.Has(me), s.RedundancyList.Has(me)
	n := len(s.Participants)
	switch {
	case s.Closed && redundant:
		return FailRedundant
	case s.Closed:
		return FailClosed
	case redundant && n >= r.MaxNodes:
		return s.keepAliveOrSync(me, r, now)
	case redundant:
		return RemoveFromRedundancyList
	case s.Complete && participant:
		return Finish
	case now.After(deadline):
		switch {
		case now.After(deadline.Add(rollbackPeriod)):
			return FailTimeout
		case participant:
			return RemoveFromParticipants
		case waiting:
			return RemoveFromWaitList
		}
		return FailTimeout
	case s.Complete && n < r.MaxNodes && !waiting:
		return AddToWaitList
	case s.Complete && n >= r.MaxNodes && !waiting:
		return AddToRedundancyList
	case !s.Complete && participant && s.lastCallOver(r, now):
		return MarkComplete
	case !s.Complete && !participant:
		return AddToParticipants
	}
	return s.keepAliveOrSync(me, r, now)
}

func (s *State) lastCallOver(r Rules, now time.Time) bool {
	n := len(s.Participants)
	return n >= r.MinNodes && n <= r.MaxNodes && !s.Deadline.IsZero() && now.After(s.Deadline)
}

// Exit decides what a node does next to be in no round.
// Source: _RendezvousExitOp.
func (s *State) Exit(me Node) Action {
	if _, participant := s.Participants[me]; participant {
		return RemoveFromParticipants
	}
	return Finish
}

// Stay decides whether a node's heartbeat is due. A node that the others have
// dropped stays silent.
// Source: _RendezvousKeepAliveOp.
func (s *State) Stay(me Node, r Rules, now time.Time) Action {
	if s.heartbeatDue(me, r, now) {
		return KeepAlive
	}
	return Finish
}

// End decides what a node does next to close the rendezvous.
// Source: _RendezvousCloseOp.
func (s *State) End() Action {
	if s.Closed {
		return Finish
	}
	return MarkClosed
}

func (s *State) keepAliveOrSync(me Node, r Rules, now time.Time) Action {
	if s.heartbeatDue(me, r, now) {
		return KeepAlive
	}
	return Sync
}

func (s *State) heartbeatDue(me Node, r Rules, now time.Time) bool {
	last, known := s.LastHeartbeats[me]
	return known && now.Sub(last) >= r.KeepAliveInterval
}

// Do performs an action that changes the state; others change nothing.
//
// One thing is not as in TorchElastic: the last call begins as soon as there are
// at least MinNodes and it has not begun, not only when there are exactly as many.
// Source: the methods of _DistributedRendezvousOpExecutor.
func (s *State) Do(a Action, me Node, r Rules, now time.Time) {
	switch a {
	case KeepAlive:
		s.LastHeartbeats[me] = now
	case AddToParticipants:
		delete(s.WaitList, me)
		s.Participants[me] = 0
		s.LastHeartbeats[me] = now
		switch n := len(s.Participants); {
		case n >= r.MaxNodes:
			s.AssignRanks(nil)
		case n >= r.MinNodes && s.Deadline.IsZero():
			s.Deadline = now.Add(r.LastCall)
		}
	case AddToWaitList:
		delete(s.RedundancyList, me)
		s.WaitList.Add(me)
		s.LastHeartbeats[me] = now
	case AddToRedundancyList:
		s.RedundancyList.Add(me)
		s.LastHeartbeats[me] = now
	case RemoveFromParticipants:
		delete(s.Participants, me)
		delete(s.LastHeartbeats, me)
		s.epilogue(r)
	case RemoveFromWaitList:
		delete(s.WaitList, me)
		delete(s.LastHeartbeats, me)
	case RemoveFromRedundancyList:
		delete(s.RedundancyList, me)
		delete(s.LastHeartbeats, me)
	case MarkComplete:
		s.AssignRanks(nil)
	case MarkClosed:
		s.Closed = true
	}
}

// Drop removes nodes that are dead from everything.
// Source: _sanitize in dynamic_rendezvous.py.
func (s *State) Drop(r Rules, dead ...Node) {
	participant := false
	for _, n := range dead {
		if _, ok := s.Participants[n]; ok {
			participant = true
		}
		delete(s.Participants, n)
		delete(s.WaitList, n)
		delete(s.RedundancyList, n)
		delete(s.LastHeartbeats, n)
	}
	if participant {
		s.epilogue(r)
	}
}

// epilogue is what follows when a participant has gone.
// Source: _remove_participant_epilogue.
func (s *State) epilogue(r Rules) {
	if s.Complete {
		if len(s.Participants) == 0 {
			s.Complete = false
			s.Round++
		}
		return
	}
	if len(s.Participants) < r.MinNodes {
		s.Deadline = time.Time{}
	}
}

// AssignRanks ends the round's joining: every participant gets its rank. A node
// that has a rank in sticky keeps it if there is room; the others fill the gaps
// in order. With no sticky ranks all are in order, as TorchElastic has it.
func (s *State) AssignRanks(sticky map[Node]int) {
	s.Complete, s.Deadline = true, time.Time{}
	n := len(s.Participants)
	taken := make([]bool, n)
	var rest []Node
	for node := range s.Participants {
		rank, ok := sticky[node]
		if !ok || rank < 0 || rank >= n || taken[rank] {
			rest = append(rest, node)
			continue
		}
		taken[rank] = true
		s.Participants[node] = rank
	}
	slices.SortFunc(rest, Node.Compare)
	rank := 0
	for _, node := range rest {
		for taken[rank] {
			rank++
		}
		s.Participants[node] = rank
		rank++
	}
}
