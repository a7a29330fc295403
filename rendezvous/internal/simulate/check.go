package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// checks is what a run has to hold to. It hears of what the rendezvous gets before the
// rendezvous does (received, gone), and of what that says before anybody is told (said).
type checks struct {
	s       *sim
	rounds  int  // that were complete
	resumed bool // the holder is a new one, which has had no round

	// The last complete round.
	round       int               // its number; -1: none
	size        int               // nodes that it has now
	run         int               // how many of them have come to run their workers
	places      map[server.ID]int // ranks of its nodes with a session
	before      map[server.ID]int // the same as it began
	ranks       map[int]string    // who has which rank, with those of PyTorch's agents that have read theirs
	torchBefore bool              // it had torch nodes

	// What has happened since.
	told    map[server.ID]bool // who was told of a change
	causes  int                // reasons for the next round
	stirred time.Duration      // when somebody last joined or was gone
	excused time.Duration      // when one of PyTorch's agents was last gone

	// What the rendezvous is at.
	gones []*host // whose loss it may tell of
	from  *conn   // whose message it has
	what  server.Type
}

func (k *checks) reset() {
	k.round, k.places, k.told, k.ranks = -1, map[server.ID]int{}, map[server.ID]bool{}, map[int]string{}
}

// received notes what the rendezvous is about to get.
func (k *checks) received(c *conn, m *server.Message) {
	k.from, k.what = c, m.Type
	_, member := k.places[c.id]
	switch m.Type {
	case server.Join:
		k.stirred = k.s.now
		if member && !k.told[c.id] {
			k.causes++
		}
		c.joined, c.left = true, false
	case server.Leave:
		k.remove(c)
		c.left = true
	}
}

// gone notes that the rendezvous is about to hear of a connection's end.
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

// said checks what the rendezvous says at once.
func (k *checks) said(out []server.Envelope, v *holder) {
	var round []server.Envelope
	for _, e := range out {
		if e.End && e.Msg.Type == server.Change {
			c := v.conns[e.To]
			k.gones = append(k.gones, c.host)
			k.remove(c)
			k.evicted(c)
		}
	}
	if most := (4+len(k.gones)+k.s.cfg.Torch)*len(v.conns) + 8; len(out) > most {
		k.s.fail("%d messages at once for %d sessions", len(out), len(v.conns))
	}
	for _, e := range out {
		switch e.Msg.Type {
		case server.Round:
			round = append(round, e)
		case server.Change:
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

// change checks that what the rendezvous says of a node has happened.
func (k *checks) change(m *server.Message) {
	if m.Torch {
		return
	}
	switch m.Kind {
	case rendezvous.NodeLost:
		if !slices.Contains(k.gones, k.s.byName[m.Host]) {
			k.s.fail("%s is said to be lost, and is connected", m.Host)
		}
	case rendezvous.NodeLeft:
		if k.from == nil || k.from.host.name != m.Host || k.what != server.Leave {
			k.s.fail("%s is said to have left, and has not", m.Host)
		}
	}
}

// evicted checks that a node that is dropped was silent, and had a reason.
func (k *checks) evicted(c *conn) {
	s := k.s
	silent := s.now - c.heard
	if k.from != nil && k.what == server.Hello && k.from.owner == c.owner {
		return // it has come back
	}
	if silent < s.cfg.limit()-time.Millisecond {
		s.fail("%s is evicted after %v", c.host.name, silent)
	}
	alive := c.open && c.host.up && c.host.agent == c.owner
	if alive && s.cfg.Loss == 0 && c.host.troubled < c.heard {
		s.fail("%s is evicted although nothing is wrong with it", c.host.name)
	}
}

// placed checks what an agent is told of its round.
func (k *checks) placed(a *agent) {
	if a.last != nil && a.part.Round.Round <= a.last.Round {
		k.s.fail("%s is told of round %d after round %d", a.host.name, a.part.Round.Round, a.last.Round)
	}
}

// master checks that nodes meet where their rank 0 is.
func (k *checks) master(a *agent, m *server.Message) {
	if want, got := k.s.meetings[roundID{a.conn.holder, m.Round}].addr, fmt.Sprintf("%s:%d", m.Addr, m.Port); got != want {
		k.s.fail("round %d: %s is told to meet at %s, want %s", m.Round, a.host.name, got, want)
	}
}

// offset checks what an agent believes of the holder's clock: it cannot be wrong by
// more than half the time that the answer took.
func (k *checks) offset(a *agent, m *server.Message) {
	s := k.s
	now := a.host.time(s).UnixNano()
	offset := time.Duration(m.Time - (m.Sent + (now-m.Sent)/2))
	if wrong, most := (offset + a.host.skew).Abs(), time.Duration(now-m.Sent)/2+time.Microsecond; wrong > most {
		s.fail("%s takes the holder's clock to be %v ahead, which is wrong by %v", a.host.name, offset, wrong)
	}
}

// refused checks that an agent is refused for a reason.
func (k *checks) refused(a *agent, m *server.Message) {
	k.s.fail("%s is refused: %s", a.host.name, m.Error)
}

// dropped checks whom one of PyTorch's agents takes for dead.
func (k *checks) dropped(f *torchAgent, dead []state.Node) {
	s := k.s
	for _, n := range dead {
		k.excused = s.now
		h := s.byName[n.Addr]
		busy := h.is(leaving)
		if h.torch {
			busy = h.is(opening) || s.now <= h.slowUntil+s.cfg.limit()
		}
		alive := h.agent != nil && h.agent.common().node == n && !busy
		if alive && h.up && s.cfg.Loss == 0 && h.troubled < s.now-2*s.cfg.limit() && f.host.troubled < s.now-2*s.cfg.limit() && s.holder.stall < s.now-2*s.cfg.limit() {
			s.fail("%s takes %s for dead, which is well", f.host.name, h.name)
		}
	}
}

// torchPlaced checks the place that one of PyTorch's agents has read. It counts the
// participants when it looks, up to a second late; somebody may have left by then.
func (k *checks) torchPlaced(f *torchAgent) {
	s := k.s
	if f.round > k.round {
		k.round, k.size, k.run = f.round, f.size, 0 // a round without one of ours
		k.rounds++
		k.ranks = map[int]string{}
	}
	if f.size > s.cfg.Max || f.rank < 0 || f.rank >= s.cfg.Max || k.causes == 0 && s.now > k.excused+2*s.cfg.limit() && (f.size < s.cfg.Min || f.rank >= f.size) {
		s.fail("%s: rank %d of %d in round %d, want %d to %d nodes", f.host.name, f.rank, f.size, f.round, s.cfg.Min, s.cfg.Max)
	}
	if f.round == k.round && k.ranks[f.rank] != "" {
		s.fail("%s and %s both have rank %d in round %d", f.host.name, k.ranks[f.rank], f.rank, f.round)
	}
	k.ranks[f.rank] = f.host.name
}
