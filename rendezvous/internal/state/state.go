// Package state is what the nodes of a job know together about their rendezvous, and the
// rules by which one of them changes it: TorchElastic's, as a pure state machine. A State
// says what a node does next (Join, Exit, Stay, End: an Action), and Do does it.
//
// There is no clock in it, no I/O and no log. It has three users: a node that changes the
// state by compare-and-set at a store of PyTorch's, the server that holds it for all nodes,
// and the simulation.
package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// A Node is one agent of a job.
// Source: _NodeDesc in dynamic_rendezvous.py.
type Node struct {
	Addr    string // its address in the eyes of the other nodes
	PID     int
	LocalID int // counts the handlers of one process
}

func (n Node) String() string { return fmt.Sprintf("%s_%d_%d", n.Addr, n.PID, n.LocalID) }

// Rank is the rank that a node of a static job has from the start.
func (n Node) Rank() (rank int, ok bool) {
	rank, err := strconv.Atoi(n.Addr)
	return rank, err == nil && n.PID == 0
}

// Compare orders nodes as ranks are given out: by address as text, then by PID
// and local ID as numbers.
func (n Node) Compare(m Node) int {
	return cmp.Or(cmp.Compare(n.Addr, m.Addr), cmp.Compare(n.PID, m.PID), cmp.Compare(n.LocalID, m.LocalID))
}

// A Set is a set of nodes.
type Set map[Node]struct{}

// Has reports whether n is in the set.
func (s Set) Has(n Node) bool { _, ok := s[n]; return ok }

// Add puts n into the set.
func (s Set) Add(n Node) { s[n] = struct{}{} }

// State is what the nodes of a job know together about their rendezvous.
// Source: _RendezvousState in dynamic_rendezvous.py.
type State struct {
	// Round counts from 0. It moves when the last participant of a complete
	// round has left.
	Round int
	// Complete says that the round's participants have their ranks.
	Complete bool
	// Deadline is when the last call ends; zero while there is none.
	Deadline time.Time
	// Closed says that no round will follow.
	Closed bool
	// Participants are the nodes of the round and their group ranks, which are
	// all 0 until the round is complete.
	Participants map[Node]int
	// WaitList are nodes that want to take part in the next round.
	WaitList Set
	// RedundancyList are nodes that want to, should there ever be room.
	RedundancyList Set
	// LastHeartbeats says when each node of the three collections last said that
	// it is alive, by its own clock.
	LastHeartbeats map[Node]time.Time
}

// NewState returns the state before any node has joined.
func NewState() *State {
	return &State{
		Participants: map[Node]int{}, WaitList: Set{}, RedundancyList: Set{},
		LastHeartbeats: map[Node]time.Time{},
	}
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() *State {
	c := *s
	c.Participants = maps.Clone(s.Participants)
	c.WaitList = maps.Clone(s.WaitList)
	c.RedundancyList = maps.Clone(s.RedundancyList)
	c.LastHeartbeats = maps.Clone(s.LastHeartbeats)
	return &c
}

// Nodes returns the participants, sorted.
func (s *State) Nodes() []Node {
	return slices.SortedFunc(maps.Keys(s.Participants), Node.Compare)
}
