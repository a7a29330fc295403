package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// few is how many names a rendezvous.Waiting holds.
const few = 8

// Waiting says how far the next round is. name gives a node's host name; last are
// the participants of the last round, if known.
func (s *State) Waiting(now time.Time, r Rules, last map[Node]int, name func(Node) string) rendezvous.Waiting {
	w := rendezvous.Waiting{Joined: len(s.Participants), MinNodes: r.MinNodes, MaxNodes: r.MaxNodes,
		Spare: len(s.RedundancyList)}
	if s.Complete {
		w.Joined, w.Running = len(s.WaitList), len(s.Participants)
		for n := range s.WaitList {
			w.Known = note(w.Known, name(n))
		}
	} else {
		if !s.Deadline.IsZero() {
			w.LastCall = max(s.Deadline.Sub(now), 1)
		}
		for n := range s.Participants {
			w.Known = note(w.Known, name(n))
		}
	}
	for n := range last {
		_, joined := s.Participants[n]
		if !joined && !s.WaitList.Has(n) {
			who := name(n)
			if rank, ok := n.Rank(); ok {
				who = fmt.Sprintf("node rank %d (%s)", rank, who) // another in its place needs it
			}
			w.NumMissing++
			w.Missing = note(w.Missing, who)
		}
	}
	return w
}

// note puts a name into a sorted list of the first few.
func note(list []string, name string) []string {
	at, _ := slices.BinarySearch(list, name)
	if at == few {
		return list
	}
	if len(list) == few {
		list = list[:few-1]
	}
	return slices.Insert(list, at, name)
}
