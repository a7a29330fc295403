package simulate

import (
	"log/slog"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// A holder is the model of server.Server for one run: the rendezvous and its connections.
type holder struct {
	s     *sim
	rdzv  *server.Rendezvous
	check *checks
	conns map[server.ID]*conn
	timer *timer
	due   time.Time
	late  bool           // it is in the past
	dead  bool           // its process has ended
	lost  bool           // so has its host
	near  map[*host]bool // who reach it; nil: all
	busy  time.Duration  // until when it works on messages
	stall time.Duration  // until when it is stopped
	in    line           // what it has got and not looked at
	out   line           // what it has still to send

	created bool   // somebody has greeted the rendezvous, which has taken over the key
	text    []byte // what is stored there
}

// began is when runs begin, by the holder's clock.
var began = time.Unix(1_000_000_000, 0).UTC()

// clock is the holder's.
func (s *sim) clock() time.Time { return began.Add(s.now) }

// arrive takes a message from the network; the holder gets to it in turn.
func (v *holder) arrive(c *conn, m *server.Message) {
	if v.dead {
		if !v.lost {
			v.s.closeDown(c)
		}
		return
	}
	v.work(func() { v.receive(c, m) })
}

// eof takes the end of a connection from the network.
func (v *holder) eof(c *conn) {
	v.work(func() {
		if c.served {
			c.served = false
			delete(v.conns, c.id)
			v.s.trace("holder: %s is gone", c.host.name)
			v.check.gone(c)
			v.do(func(now time.Time) { v.rdzv.Gone(now, c.id) })
		}
	})
}

// newHolder makes the holder that agents connect to from now on.
func (s *sim) newHolder() {
	k := &checks{s: s}
	if s.holder == nil {
		k.reset()
	} else {
		*k = *s.holder.check
		k.holderLost()
	}
	s.holder = &holder{s: s, check: k, rdzv: server.NewRendezvous(runID, slog.New(slog.DiscardHandler)), conns: map[server.ID]*conn{}, text: []byte(pickle.Sentinel)}
}

// die ends the holder's process. Its kernel says so on all connections, unless the host is
// lost, too.
func (v *holder) die(host bool) {
	v.dead, v.lost = true, host
	v.timer.stop()
	for _, c := range v.s.all {
		if c.holder == v && c.served {
			c.served = false
			if !host {
				v.s.closeDown(c)
			}
		}
	}
	v.conns = nil
	v.check.holderLost()
}

// suspend reports whether there may be another holder.
func (v *holder) suspend(suspended bool) {
	v.check.causes++
	v.check.stirred = v.s.now
	v.do(func(now time.Time) { v.rdzv.Suspend(now, suspended) })
}

// work makes do happen when the holder has done what it got before.
func (v *holder) work(do func()) {
	s := v.s
	v.busy = max(v.busy, s.now, v.stall) + s.cfg.Work
	v.in.run(s, v.busy, func() {
		if !v.dead {
			do()
		}
	})
}

// A line is what waits for the holder to get to it, in order.
type line struct{ length int }

func (l *line) run(s *sim, at time.Duration, do func()) {
	if at <= s.now && l.length == 0 {
		do()
		return
	}
	l.length++
	s.at(at, func() {
		l.length--
		do()
	})
}

func (v *holder) receive(c *conn, m *server.Message) {
	if !c.known {
		c.known, c.served = true, true
		v.conns[c.id] = c
	}
	if !c.served {
		return // it has been ended
	}
	c.heard = v.s.now
	v.s.trace("%s -> holder: %s", c.host.name, m.Type)
	v.check.received(c, m)
	v.do(func(now time.Time) { v.rdzv.Receive(now, c.id, m) })
	if !v.created {
		v.created = true
		if existing := v.text; string(existing) != pickle.Sentinel {
			v.do(func(now time.Time) { v.rdzv.Adopt(now, existing) })
		}
	}
}

// do lets f use the rendezvous, sends what that has to say, and checks it.
func (v *holder) do(f func(now time.Time)) {
	s := v.s
	f(s.clock())
	out := v.rdzv.Out()
	v.check.said(out, v)
	for _, e := range out {
		c := v.conns[e.To]
		if c == nil {
			s.fail("a message %q for session %d, which is over", e.Msg.Type, e.To)
			continue
		}
		s.traceMessage(c, e.Msg)
		v.push(c, e.Msg)
		if e.End {
			c.served = false
			delete(v.conns, e.To)
			v.out.run(s, v.busy, func() { s.closeDown(c) })
		}
	}
	v.setTimer()
}

// push sends a message when the holder gets to it.
func (v *holder) push(c *conn, m *server.Message) {
	size := v.s.measure(m)
	v.busy = max(v.busy, v.s.now) + v.s.cfg.Work
	v.out.run(v.s, v.busy, func() { v.s.sendDown(c, m, size) })
}

// setTimer makes the rendezvous wake when it wants to.
func (v *holder) setTimer() {
	due := v.rdzv.Next()
	wasLate := v.late
	v.late = !due.IsZero() && due.Before(v.s.clock().Add(-time.Millisecond))
	if v.late && wasLate && v.stall < v.s.now-time.Second && v.s.cfg.Work == 0 {
		v.s.fail("the rendezvous wants to wake in the past, at %v", due.Sub(began))
	}
	if due.Equal(v.due) {
		return
	}
	v.timer.stop()
	if v.due = due; due.IsZero() {
		return
	}
	v.timer = v.s.after(due.Sub(v.s.clock()), func() {
		v.due = time.Time{}
		v.wake(func() {
			if v.dead {
				return
			}
			v.s.trace("holder: wakes")
			v.do(func(now time.Time) { v.rdzv.Advance(now) })
			if next := v.rdzv.Next(); !next.IsZero() && !next.After(v.s.clock()) {
				v.s.fail("the rendezvous wakes at %v and wants to wake again at %v", v.s.now, next.Sub(began))
			}
		})
	})
}

// wake makes do happen now, or first when the holder continues.
func (v *holder) wake(do func()) {
	if v.s.now < v.stall {
		v.s.at(v.stall-1, do)
		return
	}
	do()
}
