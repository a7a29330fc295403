package simulate

import (
	"maps"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// complete checks a round that the rendezvous has told of.
func (k *checks) complete(out []server.Envelope, v *holder) {
	s := k.s
	first := out[0].Msg
	n := first.WorldSize
	if k.resumed {
		k.resume(out, v)
	} else if first.Round <= k.round || k.rounds > 0 && !first.Torch && s.cfg.Torch == 0 && first.Round != max(k.round, newest(out, v, true).Round)+1 {
		s.fail("round %d after round %d", first.Round, k.round)
	}
	if n < s.cfg.Min || n > s.cfg.Max {
		s.fail("round %d has %d nodes, want %d to %d", first.Round, n, s.cfg.Min, s.cfg.Max)
	}
	if !first.Torch && len(out) != n {
		s.fail("round %d of %d nodes is told to %d", first.Round, n, len(out))
	}
	places, byRank, newcomers := k.ranked(out, v)
	if places == nil {
		return
	}
	if !first.Torch {
		k.workers(out, byRank, v)
	}
	if s.cfg.Torch == 0 && k.rounds > 0 {
		k.prompt(first, places, newcomers, v)
	}
	k.round, k.size, k.run = first.Round, n, 0
	k.rounds++
	k.places, k.before, k.told, k.causes = places, maps.Clone(places), map[server.ID]bool{}, 0
	k.torchBefore = first.Torch
	for _, e := range out {
		v.conns[e.To].joined = false
	}
	k.ranks = map[int]string{}
	for _, e := range out {
		k.ranks[e.Msg.Rank] = v.conns[e.To].host.name
	}
}

// ranked checks the ranks of a round and returns them, what each is told in order
// of rank, and how many were not in the round before.
func (k *checks) ranked(out []server.Envelope, v *holder) (places map[server.ID]int, byRank []*server.Message, newcomers int) {
	s, first := k.s, out[0].Msg
	n := first.WorldSize
	places = make(map[server.ID]int, len(out))
	byRank = make([]*server.Message, n)
	for _, e := range out {
		m := e.Msg
		if m.Round != first.Round || m.WorldSize != n || m.Torch != first.Torch {
			s.fail("one is told of round %d of %d nodes, another of round %d of %d", first.Round, n, m.Round, m.WorldSize)
			return nil, nil, 0
		}
		if m.Rank < 0 || m.Rank >= n || byRank[m.Rank] != nil {
			s.fail("round %d: rank %d of %d is given twice or cannot be", m.Round, m.Rank, n)
			return nil, nil, 0
		}
		byRank[m.Rank] = m
		places[e.To] = m.Rank
		old, stayed := k.before[e.To]
		if !stayed {
			newcomers++
		} else if old < n && old != m.Rank && !m.Torch && !k.torchBefore {
			s.fail("round %d: %s had rank %d and gets %d", m.Round, v.conns[e.To].host.name, old, m.Rank)
		}
	}
	return places, byRank, newcomers
}

// holderLost notes that the rendezvous is gone, and all that it knew.
func (k *checks) holderLost() {
	k.places, k.told, k.before = map[server.ID]int{}, map[server.ID]bool{}, nil
	k.size, k.run, k.resumed = 0, 0, true
}

// resume checks the first round of a rendezvous that another one was before: it continues
// from the last round that its nodes know, with its ranks.
func (k *checks) resume(out []server.Envelope, v *holder) {
	k.resumed = false
	last, place := newest(out, v, true), newest(out, v, false)
	for _, e := range out {
		a, m := v.conns[e.To].owner.(*agent), e.Msg
		if m.Round <= last.Round {
			k.s.fail("round %d of a new holder after round %d", m.Round, last.Round)
			return
		}
		// With another number than the next, a node that is gone had told of a later round.
		if p := a.last; p != nil && !a.spare && p.Compare(&place) == 0 && m.Round == place.Round+1 && p.Rank < m.WorldSize && p.Rank != m.Rank {
			k.s.fail("round %d of a new holder: %s had rank %d and gets %d", m.Round, a.host.name, p.Rank, m.Rank)
		}
	}
}

// newest is the last round that the nodes of a new one were in, with or without those that came as
// spares; number -1 if they were in none.
func newest(out []server.Envelope, v *holder, spares bool) server.Place {
	last := server.Place{Round: -1}
	for _, e := range out {
		if a, ours := v.conns[e.To].owner.(*agent); ours && a.last != nil && (spares || !a.spare) && (a.conn == nil || a.conn.holder == v) {
			if a.last.Compare(&last) > 0 {
				last = *a.last
			}
		}
	}
	return last
}

// prompt checks that a round has a reason, that it keeps those who were in the last
// one, and that nobody waits for a last call if nobody else can come.
func (k *checks) prompt(m *server.Message, places map[server.ID]int, newcomers int, v *holder) {
	s := k.s
	if k.causes == 0 && newcomers == 0 {
		s.fail("round %d has no reason", m.Round)
	}
	for id := range k.places {
		if _, stays := places[id]; !stays {
			s.fail("round %d has no place for %s, which was in the round before", m.Round, v.conns[id].host.name)
		}
	}
	if late := s.now - k.stirred; newcomers == 0 && late > 0 {
		s.fail("round %d of those who were there before is complete %v after the last came", m.Round, late)
	}
}

// spares checks that no node that wants to is left out of a round that has room, and
// none that does not is in it.
func (k *checks) spares(v *holder) {
	for id := range k.places {
		if c := v.conns[id]; c.left {
			k.s.fail("round %d has %s, which has left", k.round, c.host.name)
		}
	}
	if k.size == k.s.cfg.Max || k.s.cfg.Torch > 0 {
		return
	}
	for _, h := range k.s.hosts {
		if a, ok := h.agent.(*agent); !ok || a.conn == nil || !a.conn.served || a.conn.holder != v {
			continue
		} else if _, member := k.places[a.conn.id]; !member && a.conn.joined {
			k.s.fail("round %d has room for %s, which has joined", k.round, h.name)
		}
	}
}

// workers checks the ranks of a round's workers.
func (k *checks) workers(out []server.Envelope, byRank []*server.Message, v *holder) {
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
