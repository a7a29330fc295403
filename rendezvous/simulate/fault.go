package simulate

import (
	"time"
)

// A trouble is something that goes wrong.
type trouble struct {
	weight int
	do     func(s *sim, h *host)
}

var troubles = []trouble{
	{4, (*sim).killAgent},
	{3, (*sim).loseHost},
	{3, (*sim).cutHost},
	{1, (*sim).cutMany},
	{4, (*sim).failWorker},
	{2, (*sim).stopAgent},
	{3, (*sim).addAgent},
	{2, (*sim).slowLink},
	{1, (*sim).stallServer},
	{2, (*sim).loseServer},
}

// fault makes one thing go wrong, on a host that has an agent.
func (s *sim) fault() {
	h := s.hosts[s.rng.IntN(len(s.hosts))]
	for range len(s.hosts) {
		if h.agent != nil {
			break
		}
		h = s.hosts[(h.id+1)%len(s.hosts)]
	}
	total := 0
	for i := range troubles {
		total += troubles[i].weight
	}
	n := s.rng.IntN(total)
	for i := range troubles {
		if n -= troubles[i].weight; n < 0 {
			s.faults++
			troubles[i].do(s, h)
			return
		}
	}
}

// killAgent ends an agent's process, of which the server hears.
func (s *sim) killAgent(h *host) {
	if h.agent != nil {
		s.trace("fault: %s: its agent is killed", h.name)
		h.agent.kill()
		s.again(h)
	}
}

// again starts an agent again, as a new node, unless its host is given up.
func (s *sim) again(h *host) {
	if s.rng.Float64() < s.cfg.Restart {
		s.soon(s.pause(2*s.cfg.Limit), func() {
			h.up = true
			s.start(h, h.foreign)
		})
	}
}

// loseHost has a host vanish: nobody says so.
func (s *sim) loseHost(h *host) {
	if h.up {
		s.trace("fault: %s: the host is lost", h.name)
		h.up = false
		if h.agent != nil {
			h.agent.kill()
		}
		s.again(h)
	}
}

// cutHost separates a host from the server for a while.
func (s *sim) cutHost(h *host) {
	if s.now < h.cutUntil {
		return
	}
	d := s.pause(2 * s.cfg.Limit)
	s.trace("fault: %s: cut off for %v", h.name, d)
	h.cutUntil = s.now + d
	h.troubled = h.cutUntil
	s.troubled = max(s.troubled, h.cutUntil)
	s.soon(d, func() { s.trace("%s: its link is back", h.name) })
}

// mostCut is how many hosts lose their links at once: those of one switch.
const mostCut = 64

// cutMany separates some of the hosts.
func (s *sim) cutMany(*host) {
	n := 1 + s.rng.IntN(1+min(len(s.hosts)/2, mostCut))
	for range n {
		s.cutHost(s.hosts[s.rng.IntN(len(s.hosts))])
	}
}

// failWorker has a worker fail: its agent goes on to a new round.
func (s *sim) failWorker(h *host) {
	switch a := h.agent.(type) {
	case *agent:
		a.fail()
	case *foreign:
		a.fail()
	}
}

// stopAgent tells an agent to leave the job.
func (s *sim) stopAgent(h *host) {
	switch a := h.agent.(type) {
	case *agent:
		if a.phase < leaving {
			s.trace("fault: %s: its agent is told to stop", h.name)
			a.leave("told to stop", false)
		}
	case *foreign:
		s.killAgent(h)
	}
}

// addAgent adds a host to the job.
func (s *sim) addAgent(*host) {
	h := s.addHost()
	s.trace("fault: %s is new", h.name)
	s.start(h, s.cfg.Foreign > 0 && s.rng.IntN(4) == 0)
}

// slowLink makes a link slow for a while.
func (s *sim) slowLink(h *host) {
	h.slow = s.pause(s.cfg.KeepAlive / 2)
	s.trace("fault: %s: its link takes %v longer", h.name, h.slow)
	d := s.pause(s.cfg.Limit)
	h.slowUntil = max(h.slowUntil, s.now+d)
	s.soon(d, func() { h.slow = 0 })
}

// stallServer stops the server's process for a while.
func (s *sim) stallServer(*host) {
	d := s.pause(s.cfg.Limit * 3 / 4)
	s.trace("fault: the server stops for %v", d)
	s.server.stall = s.now + d
	s.soon(d, func() {})
}

// loseServer ends the server, and the agent of the host that it is on. Some time
// later there is another one, and the agents hear of it.
func (s *sim) loseServer(h *host) {
	v := s.server
	if !s.cfg.Elected || v.dead {
		return
	}
	lost := s.rng.IntN(2) == 0
	s.trace("fault: the server is lost, with its host: %v", lost)
	v.die(lost)
	if lost {
		s.loseHost(h)
	} else {
		s.killAgent(h)
	}
	s.soon(s.pause(s.cfg.KeepAlive), func() {
		s.trace("another server takes over")
		s.newServer()
		for _, h := range s.hosts {
			s.after(s.pause(100*time.Millisecond), func() {
				if a, ok := h.agent.(*agent); ok && a.conn != nil && a.conn.server == v && a.conn.open {
					a.disconnected()
				}
			})
		}
	})
}

// agentEnded has somebody start an agent again that has lost the rendezvous.
func (s *sim) agentEnded(h *host, why string) {
	s.disturbed = s.now
	s.living--
	if h.foreign {
		s.check.excused = s.now
	}
	if why == lostServer && !s.ending && s.rng.Float64() < s.cfg.Restart {
		s.soon(time.Second+s.pause(5*time.Second), func() { s.start(h, h.foreign) })
	}
}
