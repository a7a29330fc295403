package server

import (
	"net/netip"

	"github.com/muster-run/muster/rendezvous"
)

// A Participation is what the rendezvous' messages mean to one node, from one Join to the
// next. Like Rendezvous at the other end it is pure: it says what the node is to do, and the
// agents of a simulation do it as those of a job.
type Participation struct {
	Round   *Message       // in which the node has a rank; nil until it is complete
	Hosts   []netip.Prefix // of rank 0: whence the round's workers come, if that is known for sure
	Spare   bool           // the round is full without the node
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
	OpenStore               // make the workers' store, and say Master: the node has rank 0
	FindStore               // find the workers' store by the agents', as rank 0 is an agent of PyTorch
	Begin                   // the message says where the workers' store is
	EndClosed               // with rendezvous.ErrClosed
	EndUnneeded             // with rendezvous.ErrRedundant
)

// Join begins anew: the node has said Join.
func (p *Participation) Join() { p.Round, p.Hosts, p.hosts = nil, nil, nil }

// Meet takes a message while the node joins a round.
func (p *Participation) Meet(m *Message) Step {
	switch m.Type {
	case Spare:
		if p.Spare = m.Redundant; p.Spare {
			return BeSpare
		}
		return BeNoSpare
	case Closed:
		if m.Redundant {
			return EndUnneeded
		}
		return EndClosed
	case Hosts:
		p.hosts = append(p.hosts, m.Hosts...)
	case Round:
		p.Round, p.Spare = m, false
		if len(p.hosts) == m.NumHosts {
			p.Hosts = p.hosts
		}
		p.hosts = nil
		switch {
		case m.Rank == 0:
			return OpenStore
		case m.Published:
			return FindStore
		}
	case Master:
		if p.Round != nil && m.Round == p.Round.Round {
			return Begin
		}
	case Change:
		if _, concerned := p.News(m); concerned && p.Round != nil {
			return JoinAgain
		}
	}
	return Await
}

// News takes a message after the round is complete. It returns what the message says of the
// round, and whether it says anything.
func (p *Participation) News(m *Message) (c rendezvous.Change, concerned bool) {
	switch {
	case m.Type == Closed:
		return rendezvous.Change{Kind: rendezvous.Closed, Rank: -1}, true
	case m.Type != Change:
		return c, false
	case m.Kind == rendezvous.Evicted:
		p.Evicted = true
	case p.Round == nil || m.Round != p.Round.Round:
		return c, false
	}
	return rendezvous.Change{Kind: m.Kind, Node: m.Host, Rank: m.Rank}, true
}
