package simulate

import (
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// dropped checks whom one of PyTorch's agents takes for dead.
func (k *checks) dropped(f *foreign, dead []state.Node) {
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
