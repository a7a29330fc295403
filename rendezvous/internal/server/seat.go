package server

import (
	"net/netip"

	"github.com/muster-run/muster/rendezvous"
)

// A Seat is what a session's messages mean to its node, from one Join to the next. Like
// Rendezvous at the other end it is pure: it says what the node is to do, and agents
// of a simulation do it as those of a job.
type Seat struct {
	Round   *Message       // in which the node has a rank, once it is complete
	Hosts   []netip.Prefix // of rank 0: whence the round's workers come, if that is known for sure
	Spare   bool           // there is no place for the node
	Evicted bool           // the rendezvous has dropped the node, and ends the session

	hosts []netip.Prefix // so far
}

// A Step is what a node does next to take part in a round.
type Step uint8

const (
	Await       Step = iota // another message
	JoinAgain               // the round has broken up before it began
	BeSpare                 // wait without a time limit, as the job is full
	BeNoSpare               // wait with a new time limit, as it is not any more
	OpenStore               // make the place where the workers meet, and say Master: the node has rank 0
	FindStore               // find that place in the store, as rank 0 is an agent of PyTorch
	Begin                   // the message says where that place is
	EndClosed               // with rendezvous.ErrClosed
	EndUnneeded             // with rendezvous.ErrRedundant
)

// Join is what a node that says Join forgets.
func (s *Seat) Join() { s.Round, s.Hosts, s.hosts = nil, nil, nil }

// Meet takes a message while the node joins a round.
func (s *Seat) Meet(m *Message) Step {
	switch m.Type {
	case Spare:
		if s.Spare = m.Redundant; s.Spare {
			return BeSpare
		}
		return BeNoSpare
	case Closed:
		if m.Redundant {
			return EndUnneeded
		}
		return EndClosed
	case Hosts:
		s.hosts = append(s.hosts, m.Hosts...)
	case Round:
		s.Round, s.Spare = m, false
		if len(s.hosts) == m.NumHosts {
			s.Hosts = s.hosts
		}
		s.hosts = nil
		switch {
		case m.Rank == 0:
			return OpenStore
		case m.Published:
			return FindStore
		}
	case Master:
		if s.Round != nil && m.Round == s.Round.Round {
			return Begin
		}
	case Change:
		if _, concerned := s.News(m); concerned && s.Round != nil {
			return JoinAgain
		}
	}
	return Await
}

// News takes a message after the round is complete, and returns what it says of that.
func (s *Seat) News(m *Message) (c rendezvous.Change, concerned bool) {
	switch {
	case m.Type == Closed:
		return rendezvous.Change{Kind: rendezvous.Closed, Rank: -1}, true
	case m.Type != Change:
		return c, false
	case m.Kind == rendezvous.Evicted:
		s.Evicted = true
	case s.Round == nil || m.Round != s.Round.Round:
		return c, false
	}
	return rendezvous.Change{Kind: m.Kind, Node: m.Host, Rank: m.Rank}, true
}
