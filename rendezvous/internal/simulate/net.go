package simulate

import (
	"time"

	"github.com/muster-run/muster/rendezvous/internal/server"
)

// How TCP waits for an acknowledgement before it sends again.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 120 * time.Second
)

// forever is longer than a run.
const forever = 1 << 60

// A host has one agent at a time, and a link to the holder.
type host struct {
	id        int
	name      string
	latency   time.Duration // one way
	skew      time.Duration // of its clock
	up        bool
	cutUntil  time.Duration // the end of its partition
	slow      time.Duration // added to the latency while the link is bad
	slowUntil time.Duration // when that ended
	troubled  time.Duration // when something on its link was last wrong
	agent     process       // nil: none
	torch     bool          // its agent is one of PyTorch's
}

// transit returns how long a message takes that a host sends or gets now.
func (s *sim) transit(h *host) time.Duration {
	sent, retry := s.now, firstRetry
	for tries := 0; sent < h.cutUntil || s.cfg.Loss > 0 && s.rng.Float64() < s.cfg.Loss; tries++ {
		if tries == 100 {
			return forever
		}
		sent += retry
		retry = min(2*retry, lastRetry)
		h.troubled = max(h.troubled, sent)
		if sent-s.now > calm {
			s.troubled = max(s.troubled, sent)
		}
	}
	d := h.latency + h.slow
	if s.cfg.Jitter > 0 {
		d += time.Duration(s.rng.Int64N(int64(s.cfg.Jitter)))
	}
	return sent - s.now + d
}

// A conn is a TCP connection between an agent and the holder.
type conn struct {
	id     server.ID
	host   *host
	holder *holder
	owner  process // the agent's side; the host's process may be another one by now
	open   bool    // the agent's side has not closed it
	served bool    // the holder's side has it
	known  bool    // the holder has had its greeting
	joined bool    // it has, and waits for a round
	left   bool    // its node has left
	up     pipe
	down   pipe
	heard  time.Duration // when the holder last got a message
	queued int           // messages on their way down
}

// A pipe is one direction of a connection.
type pipe struct {
	last            time.Duration // when what was sent last arrives
	messages, bytes int
}

// arrival is when something sent now arrives, after what was sent before it.
func (s *sim) arrival(c *conn, p *pipe) time.Duration {
	p.last = max(s.now+s.transit(c.host), p.last+1)
	return p.last
}

// holderOf is whom an agent of a host connects to; nil: nobody for now.
func (s *sim) holderOf(h *host) *holder {
	v := s.holder
	if s.old != nil && s.old.near[h] {
		v = s.old
	}
	if v.dead || v.near != nil && !v.near[h] {
		return nil
	}
	return v
}

// dial connects an agent: done is called when the holder's host has agreed.
func (s *sim) dial(h *host, owner process, done func(c *conn)) {
	c := &conn{id: server.ID(len(s.all) + 1), host: h, holder: s.holderOf(h), owner: owner, open: true}
	s.all = append(s.all, c)
	s.at(s.now+s.transit(h), func() {
		s.at(s.now+s.transit(h), func() {
			if h.agent == owner {
				done(c)
			}
		})
	})
}

// send sends a message to the holder.
func (s *sim) send(c *conn, m *server.Message) {
	n := s.measure(m)
	c.up.messages++
	c.up.bytes += n
	s.at(s.arrival(c, &c.up), func() { c.holder.arrive(c, m) })
}

// closeUp ends the connection on the agent's side, as the kernel does it for a
// process that has ended.
func (s *sim) closeUp(c *conn) {
	if c.open {
		c.open = false
		s.at(s.arrival(c, &c.up), func() { c.holder.eof(c) })
	}
}

// sendDown sends a message to the agent, which the holder may not notice to be
// gone until its host says so.
func (s *sim) sendDown(c *conn, m *server.Message, size int) {
	c.down.messages++
	c.down.bytes += size
	if c.queued++; c.queued > 4*len(s.hosts)+64 {
		s.fail("%d messages wait for %s", c.queued, c.host.name)
	}
	s.at(s.arrival(c, &c.down), func() {
		c.queued--
		switch {
		case !c.host.up:
		case c.host.agent != c.owner:
			s.reset(c)
		case c.open:
			c.owner.receive(c, m)
		}
	})
}

// closeDown ends the connection on the holder's side.
func (s *sim) closeDown(c *conn) {
	s.at(s.arrival(c, &c.down), func() {
		if c.host.up && c.open && c.host.agent == c.owner {
			c.owner.eof(c)
		}
	})
}

// reset is a host's answer on a connection that it knows nothing of.
func (s *sim) reset(c *conn) {
	if c.open {
		c.open = false
		s.at(s.now+s.transit(c.host), func() { c.holder.eof(c) })
	}
}

// measure returns a message's length as it goes over a connection.
func (s *sim) measure(m *server.Message) int {
	if !s.cfg.Measure {
		return 0
	}
	if m != s.cache.message {
		s.cache.message, s.cache.text = m, m.Append(s.cache.text[:0])
	}
	return len(s.cache.text)
}
