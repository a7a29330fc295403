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
	{1, (*sim).stallHolder},
	{2, (*sim).loseHolder},
	{2, (*sim).split},
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
			s.result.Faults++
			troubles[i].do(s, h)
			return
		}
	}
}

// killAgent ends an agent's process, of which the holder hears.
func (s *sim) killAgent(h *host) {
	if h.agent != nil {
		s.trace("fault: %s: its agent is killed", h.name)
		h.agent.end("killed")
		s.again(h)
	}
}

// again starts an agent again, as a new node, unless its host is given up.
func (s *sim) again(h *host) {
	if s.rng.Float64() < s.cfg.Restart {
		s.soon(s.pause(2*s.cfg.limit()), func() {
			h.up = true
			s.start(h, h.torch)
		})
	}
}

// loseHost has a host vanish: nobody says so.
func (s *sim) loseHost(h *host) {
	if h.up {
		s.trace("fault: %s: the host is lost", h.name)
		h.up = false
		if h.agent != nil {
			h.agent.end("killed")
		}
		s.again(h)
	}
}

// cutHost separates a host from the holder for a while.
func (s *sim) cutHost(h *host) {
	if s.now < h.cutUntil {
		return
	}
	d := s.pause(2 * s.cfg.limit())
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

// failWorker has a worker fail: its agent proceeds to a new round.
func (s *sim) failWorker(h *host) {
	if a, ok := h.agent.(*agent); ok && a.workers != nil {
		a.workers.kill(s.rng.IntN(a.local))
		if h = s.hosts[s.rng.IntN(len(s.hosts))]; s.rng.IntN(2) == 0 { // another one, perhaps during the change
			s.soon(s.pause(200*time.Millisecond), func() {
				if a, ok := h.agent.(*agent); ok {
					a.workers.kill(s.rng.IntN(a.local))
				}
			})
		}
	} else if h.is(running) {
		s.trace("%s: a worker fails", h.name)
		h.agent.restart()
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
	case *torchAgent:
		s.killAgent(h)
	}
}

// addAgent adds a host to the job.
func (s *sim) addAgent(*host) {
	h := s.addHost()
	s.trace("fault: %s is new", h.name)
	s.start(h, s.cfg.Torch > 0 && s.rng.IntN(4) == 0)
}

// slowLink makes a link slow for a while.
func (s *sim) slowLink(h *host) {
	h.slow = s.pause(s.cfg.Settings.KeepAliveInterval / 2)
	s.trace("fault: %s: its link takes %v longer", h.name, h.slow)
	d := s.pause(s.cfg.limit())
	h.slowUntil = max(h.slowUntil, s.now+d)
	s.soon(d, func() { h.slow = 0 })
}

// stallHolder stops the holder's process for a while.
func (s *sim) stallHolder(*host) {
	d := s.pause(s.cfg.limit() * 3 / 4)
	s.trace("fault: the holder stops for %v", d)
	s.holder.stall = max(s.holder.stall, s.now+d)
	s.soon(d, func() {})
}

// loseHolder ends the holder, and the agent of the host that it is on. Some time
// later there is another one, and the agents hear of it.
func (s *sim) loseHolder(h *host) {
	v := s.holder
	if !s.cfg.Elected || v.dead || s.splits() {
		return
	}
	lost := s.rng.IntN(2) == 0
	s.trace("fault: the holder is lost, with its host: %v", lost)
	v.die(lost)
	if lost {
		s.loseHost(h)
	} else {
		s.killAgent(h)
	}
	s.soon(s.pause(s.cfg.Settings.KeepAliveInterval), func() {
		s.trace("another holder takes over")
		s.takeOver(v)
	})
}

// takeOver makes another holder, of which the agents that can reach it hear.
func (s *sim) takeOver(v *holder) {
	s.newHolder()
	for _, h := range s.hosts {
		s.after(s.pause(100*time.Millisecond), func() {
			if a, ok := h.agent.(*agent); ok && !v.near[h] && a.conn != nil && a.conn.holder == v && a.conn.open {
				a.disconnected()
			}
		})
	}
}

// splits reports whether some hosts do not reach those that elect.
func (s *sim) splits() bool { return s.old != nil || s.holder.near != nil }

// split separates the holder, and some of the hosts with it, from those that elect and from the
// other hosts, which have another holder once its lease has run out.
func (s *sim) split(h *host) {
	v, limit := s.holder, s.cfg.limit()
	if !s.cfg.Elected || v.dead || s.splits() {
		return
	}
	v.near = map[*host]bool{h: true}
	part := s.rng.Float64()
	for _, h := range s.hosts {
		if s.rng.Float64() < part {
			v.near[h] = true
		} else if !v.near[h] {
			h.cutUntil = max(h.cutUntil, s.now+limit)
			h.troubled, s.troubled = h.cutUntil, max(s.troubled, h.cutUntil)
		}
	}
	s.trace("fault: the holder is alone with %d hosts", len(v.near))
	s.after(limit*9/10, func() {
		v.suspend(true)
		s.most = max(s.cfg.Max, len(v.conns))
	})
	s.soon(limit, func() {
		if len(v.near) < len(s.hosts) {
			s.trace("another holder takes over")
			s.old = v
			s.takeOver(v)
		}
	})
	s.soon(limit+s.pause(min(5*limit, s.cfg.Settings.Join)), func() {
		s.trace("all hosts reach each other again")
		if v.near = nil; s.old == nil {
			v.suspend(false)
			return
		}
		s.old = nil
		v.die(false)
	})
}

// alone checks that no two rounds of the job both run, for longer than it takes a host to find out
// that it is cut off.
func (s *sim) alone() {
	runs := map[*holder]bool{}
	for _, h := range s.hosts {
		if a, ok := h.agent.(*agent); ok && a.phase == running {
			runs[a.conn.holder] = true
		}
	}
	if len(runs) < 2 || s.living > s.most {
		s.lone = s.now
	} else if s.now > s.lone+s.cfg.limit()+calm {
		s.fail("two rounds of the job have run for %v", s.now-s.lone)
		s.lone = s.now
	}
}

// agentEnded has somebody start an agent again that has lost the rendezvous.
func (s *sim) agentEnded(h *host, why string) {
	s.disturbed = s.now
	s.living--
	if h.torch {
		s.holder.check.excused = s.now
	}
	if why == lostServer && !s.ending && s.rng.Float64() < s.cfg.Restart {
		s.soon(time.Second+s.pause(5*time.Second), func() { s.start(h, h.torch) })
	}
}
