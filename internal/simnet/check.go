package simnet

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/room"
)

// checks is what a run has to hold to.
type checks struct {
	s             *sim
	resumed       bool // the room is a new one
	round         int  // the last complete one; -1: none
	size          int  // nodes that it has now
	run           int  // how many of them have come to run their workers
	rounds        int
	places        map[room.ID]int // ranks of its nodes
	before        map[room.ID]int // of the round before
	told          map[room.ID]bool
	ranks         map[int]string // who has which rank, with those of PyTorch's agents that have read theirs
	causes        int            // reasons for the next round
	stirred       time.Duration  // when somebody last joined or was gone
	excused       time.Duration  // when one of PyTorch's agents was last gone
	gones         []*host
	from          *conn // whose message the room has
	what          room.Type
	closed        bool
	foreignBefore bool // the last round had nodes of PyTorch's
}

func (k *checks) reset() {
	k.round, k.places, k.told, k.ranks = -1, map[room.ID]int{}, map[room.ID]bool{}, map[int]string{}
}

// received notes what the room is about to get.
func (k *checks) received(c *conn, m *room.Message) {
	k.from, k.what = c, m.Type
	_, member := k.places[c.id]
	switch m.Type {
	case room.Join:
		k.stirred = k.s.now
		if member && !k.told[c.id] {
			k.causes++
		}
		c.joined, c.left = true, false
	case room.Leave:
		k.remove(c)
		c.left = true
	case room.Close:
		k.closed = true
	}
}

// gone notes that the room is about to hear of a connection's end.
func (k *checks) gone(c *conn) {
	if !c.left {
		k.gones = append(k.gones, c.host)
	}
	k.remove(c)
}

// remove notes that a node is no longer there.
func (k *checks) remove(c *conn) {
	k.stirred = k.s.now
	if c.joined {
		c.joined = false
		k.causes++ // it may have made the others leave the round
	}
	if _, member := k.places[c.id]; member {
		k.causes++
		delete(k.places, c.id)
		k.size--
	}
}

// said checks what the room says at once.
func (k *checks) said(out []room.Envelope, v *server) {
	var round []room.Envelope
	for _, e := range out {
		if e.End && e.Msg.Type == room.Change {
			c := v.conns[e.To]
			k.gones = append(k.gones, c.host)
			k.remove(c)
			k.evicted(c)
		}
	}
	if most := (4+len(k.gones)+k.s.cfg.Foreign)*len(v.conns) + 8; len(out) > most {
		k.s.fail("%d messages at once for %d sessions", len(out), len(v.conns))
	}
	for _, e := range out {
		switch e.Msg.Type {
		case room.Round:
			round = append(round, e)
		case room.Change:
			k.told[e.To] = true
			k.change(e.Msg)
		}
	}
	if len(round) > 0 {
		k.complete(round, v)
		k.spares(v)
	}
	k.gones, k.from = k.gones[:0], nil
}

// change checks that what the room says of a node has happened.
func (k *checks) change(m *room.Message) {
	if m.Foreign {
		return
	}
	switch m.Kind {
	case rendezvous.NodeLost:
		if !slices.Contains(k.gones, k.s.byName[m.Host]) {
			k.s.fail("%s is said to be lost, and is connected", m.Host)
		}
	case rendezvous.NodeLeft:
		if k.from == nil || k.from.host.name != m.Host || k.what != room.Leave {
			k.s.fail("%s is said to have left, and has not", m.Host)
		}
	}
}

// evicted checks that a node that is dropped was silent, and had a reason.
func (k *checks) evicted(c *conn) {
	s := k.s
	silent := s.now - c.heard
	if k.from != nil && k.what == room.Hello && k.from.owner == c.owner {
		return // it has come back
	}
	if silent < s.cfg.Limit-time.Millisecond {
		s.fail("%s is evicted after %v", c.host.name, silent)
	}
	alive := c.open && c.host.up && c.host.agent == c.owner
	if alive && s.cfg.Loss == 0 && c.host.troubled < c.heard {
		s.fail("%s is evicted although nothing is wrong with it", c.host.name)
	}
}

// complete checks a round that the room has told of.
func (k *checks) complete(out []room.Envelope, v *server) {
	s := k.s
	first := out[0].Msg
	n := first.WorldSize
	if k.resumed {
		k.resume(out, v)
	} else if first.Round <= k.round || k.rounds > 0 && !first.Foreign && s.cfg.Foreign == 0 && first.Round != k.round+1 {
		s.fail("round %d after round %d", first.Round, k.round)
	}
	if n < s.cfg.Min || n > s.cfg.Max {
		s.fail("round %d has %d nodes, want %d to %d", first.Round, n, s.cfg.Min, s.cfg.Max)
	}
	if !first.Foreign && len(out) != n {
		s.fail("round %d of %d nodes is told to %d", first.Round, n, len(out))
	}
	places := make(map[room.ID]int, len(out))
	byRank := make([]*room.Message, n)
	newcomers := 0
	for _, e := range out {
		m := e.Msg
		if m.Round != first.Round || m.WorldSize != n || m.Foreign != first.Foreign {
			s.fail("one is told of round %d of %d nodes, another of round %d of %d", first.Round, n, m.Round, m.WorldSize)
			return
		}
		if m.Rank < 0 || m.Rank >= n || byRank[m.Rank] != nil {
			s.fail("round %d: rank %d of %d is given twice or cannot be", m.Round, m.Rank, n)
			return
		}
		byRank[m.Rank] = m
		places[e.To] = m.Rank
		old, stayed := k.before[e.To]
		if !stayed {
			newcomers++
		} else if old < n && old != m.Rank && !m.Foreign && !k.foreignBefore {
			s.fail("round %d: %s had rank %d and gets %d", m.Round, v.conns[e.To].host.name, old, m.Rank)
		}
	}
	if !first.Foreign {
		k.workers(out, byRank, v)
	}
	if s.cfg.Foreign == 0 && k.rounds > 0 {
		k.prompt(first, places, newcomers)
	}
	k.round, k.size, k.run = first.Round, n, 0
	k.rounds++
	k.places, k.before, k.told, k.causes = places, mapsClone(places), map[room.ID]bool{}, 0
	k.foreignBefore = first.Foreign
	for _, e := range out {
		v.conns[e.To].joined = false
	}
	k.ranks = map[int]string{}
	for _, e := range out {
		k.ranks[e.Msg.Rank] = v.conns[e.To].host.name
	}
}

// roomLost notes that the room is gone, and all that it knew.
func (k *checks) roomLost() {
	k.places, k.told, k.before = map[room.ID]int{}, map[room.ID]bool{}, nil
	k.size, k.run, k.resumed = 0, 0, true
}

// resume checks the first round of a room that another one was before: it goes on
// from the last round that its nodes know, with its ranks.
func (k *checks) resume(out []room.Envelope, v *server) {
	k.resumed = false
	last := -1
	for _, e := range out {
		if p := v.conns[e.To].owner.(*agent).last; p != nil {
			last = max(last, p.Round)
		}
	}
	for _, e := range out {
		a, m := v.conns[e.To].owner.(*agent), e.Msg
		if m.Round <= last {
			k.s.fail("round %d of a new room after round %d", m.Round, last)
			return
		}
		if p := a.last; p != nil && p.Round == last && p.Rank < m.WorldSize && p.Rank != m.Rank {
			k.s.fail("round %d of a new room: %s had rank %d and gets %d", m.Round, a.host.name, p.Rank, m.Rank)
		}
	}
}

// prompt checks that a round has a reason, that it keeps those who were in the last
// one, and that nobody waits for a last call if nobody else can come.
func (k *checks) prompt(m *room.Message, places map[room.ID]int, newcomers int) {
	s := k.s
	if k.causes == 0 && newcomers == 0 {
		s.fail("round %d has no reason", m.Round)
	}
	for id := range k.places {
		if _, stays := places[id]; !stays {
			s.fail("round %d has no place for %s, which was in the round before", m.Round, s.server.conns[id].host.name)
		}
	}
	if late := s.now - k.stirred; newcomers == 0 && late > 0 {
		s.fail("round %d of those who were there before is complete %v after the last came", m.Round, late)
	}
}

// spares checks that no node that wants to is left out of a round that has room, and
// none that does not is in it.
func (k *checks) spares(v *server) {
	for id := range k.places {
		if c := v.conns[id]; c.left {
			k.s.fail("round %d has %s, which has left", k.round, c.host.name)
		}
	}
	if k.size == k.s.cfg.Max || k.s.cfg.Foreign > 0 {
		return
	}
	for _, h := range k.s.hosts {
		if a, ok := h.agent.(*agent); !ok || a.conn == nil || !a.conn.served {
			continue
		} else if _, member := k.places[a.conn.id]; !member && a.conn.joined {
			k.s.fail("round %d has room for %s, which has joined", k.round, h.name)
		}
	}
}

// workers checks the ranks of a round's workers.
func (k *checks) workers(out []room.Envelope, byRank []*room.Message, v *server) {
	agents := make([]*agent, len(byRank))
	for _, e := range out {
		agents[e.Msg.Rank] = v.conns[e.To].owner.(*agent)
	}
	var want rendezvous.Ranks
	roles := map[string]int{}
	for _, a := range agents {
		want.WorldSize += a.local
		roles[a.role] += a.local
	}
	seen := map[string]int{}
	for rank, a := range agents {
		want.RoleBase, want.RoleWorldSize = seen[a.role], roles[a.role]
		if got := byRank[rank].Ranks; got == nil || *got != want {
			k.s.fail("round %d: node %d has worker ranks %v, want %v", byRank[rank].Round, rank, got, want)
		}
		want.Base += a.local
		seen[a.role] += a.local
	}
}

// placed checks what an agent is told of its round.
func (k *checks) placed(a *agent) {
	if a.last != nil && a.place.Round <= a.last.Round {
		k.s.fail("%s is told of round %d after round %d", a.host.name, a.place.Round, a.last.Round)
	}
}

// master checks that nodes meet where their rank 0 is.
func (k *checks) master(a *agent, m *room.Message) {
	if want, got := k.s.masters[m.Round], fmt.Sprintf("%s:%d", m.Addr, m.Port); got != want {
		k.s.fail("round %d: %s is told to meet at %s, want %s", m.Round, a.host.name, got, want)
	}
}

// offset checks what an agent believes of the room's clock: it cannot be wrong by
// more than half the time that the answer took.
func (k *checks) offset(a *agent, m *room.Message) {
	s := k.s
	now := a.host.time(s).UnixNano()
	offset := time.Duration(m.Time - (m.Sent + (now-m.Sent)/2))
	if wrong, most := (offset + a.host.skew).Abs(), time.Duration(now-m.Sent)/2+time.Microsecond; wrong > most {
		s.fail("%s takes the room's clock to be %v ahead, which is wrong by %v", a.host.name, offset, wrong)
	}
}

// refused checks that an agent is refused for a reason.
func (k *checks) refused(a *agent, m *room.Message) {
	k.s.fail("%s is refused: %s", a.host.name, m.Error)
}

func mapsClone(m map[room.ID]int) map[room.ID]int {
	c := make(map[room.ID]int, len(m))
	for id, rank := range m {
		c[id] = rank
	}
	return c
}

// dropped checks whom one of PyTorch's agents takes for dead.
func (k *checks) dropped(f *foreign, dead []rendezvous.Node) {
	s := k.s
	for _, n := range dead {
		k.excused = s.now
		h := s.byName[n.Addr]
		alive := false
		switch a := h.agent.(type) {
		case *agent:
			alive = a.node == n && a.phase != leaving
		case *foreign:
			alive = a.node == n && a.phase != opening && s.now > h.slowUntil+s.cfg.Limit
		}
		if alive && h.up && s.cfg.Loss == 0 && h.troubled < s.now-2*s.cfg.Limit && f.host.troubled < s.now-2*s.cfg.Limit && s.server.stall < s.now-2*s.cfg.Limit {
			s.fail("%s takes %s for dead, which is well", f.host.name, h.name)
		}
	}
}

// foreignJoins notes that one of PyTorch's agents has left its round.
func (k *checks) foreignJoins(*foreign) { k.causes++ }

// foreignPlaced checks the place that one of PyTorch's agents has read. It counts the
// participants when it looks, up to a second late; somebody may have left by then.
func (k *checks) foreignPlaced(f *foreign) {
	s := k.s
	if f.round > k.round {
		k.round, k.size, k.run = f.round, f.size, 0 // a round without one of ours
		k.rounds++
		k.ranks = map[int]string{}
	}
	if f.size > s.cfg.Max || f.rank < 0 || f.rank >= s.cfg.Max || k.causes == 0 && s.now > k.excused+2*s.cfg.Limit && (f.size < s.cfg.Min || f.rank >= f.size) {
		s.fail("%s: rank %d of %d in round %d, want %d to %d nodes", f.host.name, f.rank, f.size, f.round, s.cfg.Min, s.cfg.Max)
	}
	if f.round == k.round && k.ranks[f.rank] != "" {
		s.fail("%s and %s both have rank %d in round %d", f.host.name, k.ranks[f.rank], f.rank, f.round)
	}
	k.ranks[f.rank] = f.host.name
}
