package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/rendezvous"
)

// A liveHost is the model of what package agent does about its workers under --live. What it decides
// is real: internal/job/decide and internal/job/live.
type liveHost struct {
	a         *agent
	host      live.Host
	procs     map[int]*worker // by local rank
	in        *holder         // the round is of
	change    int
	formed    bool // the workers are a group that can change
	pending   bool // that of this round is not known yet
	leader    bool
	asked     bool // it has said, or is about to say, that workers join
	wanted    bool // a host waits
	fruitless int

	rest   *live.Rest // while members pause
	alarm  *timer
	stage  int         // 0: the members are not known; 1: those that start are waited for; 2: members have been told
	ranks  map[int]int // of the members here
	starts int
}

// A liveRound is what the agents of a round tell each other.
type liveRound struct {
	parts       [2][]*live.Part
	plans       [2]*live.Plan
	wait        [2][]func()
	record      *liveRecord
	told        []func(*liveRecord)
	join        bool
	joins       func()
	made        map[*liveHost]bool // whose members are together
	all         func()             // called when those of all are
	interrupted bool
	interrupt   []func()
}

// A liveRecord is why a round ends, and at which step; -1: at once.
type liveRecord struct{ at int64 }

// A roundID is that of a round. Two holders may have one with the same number, if few have heard
// of the first.
type roundID struct {
	holder *holder
	number int
}

// round is what the agents of the agent's round tell each other.
func (c *liveHost) round() *liveRound {
	id := roundID{c.in, c.a.part.Round.Round}
	if c.s().rounds[id] == nil {
		c.s().rounds[id] = &liveRound{made: map[*liveHost]bool{}}
	}
	return c.s().rounds[id]
}

func (c *liveHost) s() *sim { return c.a.s }

// inRound reports whether a round continues here.
func (c *liveHost) inRound() func() bool {
	id := roundID{c.in, c.a.part.Round.Round}
	return func() bool { return c.a.phase == running && (roundID{c.in, c.a.part.Round.Round}) == id }
}

// begin brings the workers of a round together.
func (c *liveHost) begin() {
	had := false
	for _, w := range c.procs {
		had = had || w.alive && w.info.Member
	}
	for i := range c.a.local {
		if w := c.procs[i]; w == nil || !w.alive {
			c.start(i)
		}
	}
	c.stage, c.leader, c.asked, c.wanted, c.rest, c.ranks = 0, false, false, false, nil, nil
	c.alarm.stop()
	c.in = c.a.conn.holder
	goesOn := c.inRound()
	r := c.round()
	r.told = append(r.told, func(rec *liveRecord) {
		c.s().after(c.s().transit(c.a.host), func() {
			if goesOn() {
				c.handle(decide.EvPeerLive, decide.Facts{}, rec.at)
			}
		})
	})
	if had {
		rest := &live.Rest{Change: c.change, Until: c.s().clock().Add(live.Timeout)}
		c.rest = rest
		interrupt := func() {
			c.s().after(c.s().transit(c.a.host), func() {
				if rest.Others = true; goesOn() && c.rest == rest {
					c.news()
				}
			})
		}
		if r.interrupt = append(r.interrupt, interrupt); r.interrupted {
			interrupt()
		}
	} else {
		c.post(0)
	}
	c.news()
}

// start starts a worker, in place of one that has ended if there is one.
func (c *liveHost) start(local int) {
	c.starts++
	w := &worker{c: c, local: local, id: fmt.Sprintf("%s/%d/%d/%d", c.a.host.name, c.a.node.PID, local, c.starts), info: &live.Worker{}, alive: true, stopAt: -1}
	c.procs[local], c.host[local] = w, w.info
	c.s().after(c.s().pause(2*time.Second), func() {
		w.say("hello", live.Said{})
		w.say("ready", live.Said{Handle: w.id})
	})
}

// news looks what is to be done now.
func (c *liveHost) news() {
	s := c.s()
	switch {
	case c.a.phase != running:
	case c.rest != nil:
		step, until := c.rest.Next(c.host, s.clock())
		switch step {
		case live.Wait:
			c.wake(until.Sub(s.clock()))
			return
		case live.Interrupt:
			c.send(func(w *worker) bool { return !w.info.Resting(c.change) }, -1)
			c.interruptOthers()
			c.news()
			return
		case live.Kill:
			now := s.clock()
			c.killLate(func(x *live.Worker) bool { return x.Member && x.Late(c.change, now) })
			c.news()
			return
		}
		c.rest = nil
		goesOn, r := c.inRound(), c.round()
		s.after(live.InterruptAfter, func() {
			if goesOn() && r.plans[0] == nil {
				c.interruptOthers()
			}
		})
		c.post(0)
	case c.stage == 1 && c.host.Settled():
		c.stage = 0
		c.post(1)
	case c.stage == 2:
		c.watch()
	}
}

// interruptOthers has the members of the other hosts pause at once.
func (c *liveHost) interruptOthers() {
	r := c.round()
	c.s().after(c.s().transit(c.a.host), func() {
		if !r.interrupted {
			r.interrupted = true
			for _, interrupt := range r.interrupt {
				interrupt()
			}
		}
	})
}

// wake looks again after a time.
func (c *liveHost) wake(d time.Duration) {
	c.alarm.stop()
	goesOn := c.inRound()
	c.alarm = c.s().after(d, func() {
		if goesOn() {
			c.news()
		}
	})
}

// send tells the members to pause.
func (c *liveHost) send(to func(*worker) bool, at int64) {
	change := c.change
	for i := range c.a.local {
		if w := c.procs[i]; w != nil && w.alive && w.info.Member && to(w) {
			w.deliver(1, func() { w.stop(change, at) })
		}
	}
}

func (c *liveHost) killLate(late func(*live.Worker) bool) {
	for i := range c.a.local {
		if w := c.procs[i]; w != nil && w.alive && late(w.info) {
			c.s().late++
			c.kill(i)
		}
	}
}

// post tells the others of the workers here, and waits for the plan; stage is 1 when those that
// started are ready.
func (c *liveHost) post(stage int) {
	s, goesOn, me := c.s(), c.inRound(), c.a.part.Round
	part, r, in := c.host.Part(c.change), c.round(), c.in
	s.after(s.transit(c.a.host), func() {
		if r.parts[stage] == nil {
			r.parts[stage] = make([]*live.Part, me.WorldSize)
		}
		r.parts[stage][me.Rank] = &part
		r.wait[stage] = append(r.wait[stage], func() {
			s.after(s.transit(c.a.host), func() {
				if goesOn() {
					c.planned(stage, r.plans[stage])
				}
			})
		})
		switch {
		case r.plans[stage] != nil:
			r.wait[stage][len(r.wait[stage])-1]()
		case !slices.Contains(r.parts[stage], nil) && s.leads(roundID{in, me.Round}):
			var parts []live.Part
			for _, p := range r.parts[stage] {
				parts = append(parts, *p)
			}
			r.plans[stage] = live.Agree(parts)
			r.plans[stage].UUID = live.UUID(me.Round, s.rng.Uint32())
			for _, told := range r.wait[stage] {
				told()
			}
		}
	})
}

// leads reports whether the agent with group rank 0 is there to make a plan.
func (s *sim) leads(id roundID) bool {
	for _, h := range s.hosts {
		if a, ok := h.agent.(*agent); ok && a.phase == running && (roundID{a.workers.in, a.part.Round.Round}) == id && a.part.Round.Rank == 0 {
			return true
		}
	}
	return false
}

// planned hands a plan to the members here.
func (c *liveHost) planned(stage int, plan *live.Plan) {
	s, me := c.s(), c.a.part.Round
	if plan.Form && stage == 0 {
		c.stage = 1
		c.news()
		return
	}
	if err := plan.Check(me.WorldSize); err != nil {
		if !plan.Inconsistent {
			s.fail("%s, round %d: %v", c.a.host.name, me.Round, err)
		}
		c.giveUp()
		return
	}
	ranks, lost := c.host.Place(plan, me.Rank)
	if lost >= 0 {
		c.again()
		return
	}
	c.ranks, c.stage, c.formed, c.pending, c.leader = ranks, 2, true, false, plan.Leader() == me.Rank
	change, in := c.change, roundID{c.in, me.Round}
	for i := range c.a.local {
		if rank, ok := c.ranks[i]; ok {
			w := c.procs[i]
			w.deliver(1, func() { w.become(in, change, me.Rank, rank, plan) })
		}
	}
	goesOn := c.inRound()
	s.after(live.Timeout, func() {
		if goesOn() {
			c.killLate(func(x *live.Worker) bool { return x.Member && !x.TookPart(change) })
		}
	})
	if c.leader {
		r := c.round()
		r.joins = func() {
			if goesOn() {
				c.ask()
			}
		}
		if r.join {
			r.joins()
		}
	}
	c.news()
}

// watch looks for a reason for the next change.
func (c *liveHost) watch() {
	s := c.s()
	if all, _, _ := c.host.Taken(c.change, c.ranks); !all {
		return
	}
	failed, joins := c.host.FailedMember(c.change), c.host.Joining() > 0
	goesOn, r := c.inRound(), c.round()
	if n := c.a.part.Round.WorldSize; failed == nil {
		s.after(s.transit(c.a.host), func() {
			if r.made[c] = true; r.all != nil && len(r.made) == n {
				r.all()
			}
		})
	}
	switch {
	case failed != nil:
		c.stage = 3
		s.after(live.PeerTimeout, func() {
			if goesOn() {
				c.again()
			}
		})
	case (joins || c.wanted) && c.leader:
		c.ask()
	case joins && !c.asked:
		c.asked = true
		s.after(s.transit(c.a.host), func() {
			if r.join = true; r.joins != nil {
				s.after(s.transit(c.a.host), r.joins)
			}
		})
	}
}

// ask has all pause at a step once they are together, since others join.
func (c *liveHost) ask() {
	if c.asked {
		return
	}
	c.asked = true
	r, goesOn, said := c.round(), c.inRound(), false
	all := func(meet bool) {
		if !goesOn() || said {
			return
		}
		if said = true; meet {
			c.meet()
		} else {
			c.handle(decide.EvLiveChange, decide.Facts{}, -1)
		}
	}
	r.all = func() { c.s().after(c.s().transit(c.a.host), func() { all(true) }) }
	if len(r.made) == c.a.part.Round.WorldSize {
		r.all()
	}
	c.s().after(live.Timeout, func() { all(false) })
}

// meet has all pause at a step.
func (c *liveHost) meet() {
	change, goesOn := c.change, c.inRound()
	for i := range c.ranks {
		c.procs[i].info.At = nil
	}
	for i := range c.a.local {
		if w := c.procs[i]; w.alive && w.info.Member {
			w.deliver(1, func() { w.say("at", live.Said{Change: change, Step: w.step}) })
		}
	}
	c.s().after(10*time.Millisecond, func() {
		step, all := c.host.Meeting(change)
		if !all {
			step = -1
		}
		if goesOn() {
			c.handle(decide.EvLiveChange, decide.Facts{}, step)
		}
	})
}

// handle does what agents do about an event (internal/job/decide), unless they start a worker in place of
// another: the caller does that. Members pause before a step; -1: at once.
func (c *liveHost) handle(ev decide.Event, f decide.Facts, at int64) decide.Action {
	f.Live, f.Formed, f.Pending, f.RestartsLeft = true, c.formed, c.pending, 1
	f.Alone = c.a.part.Round.WorldSize == 1
	for _, w := range c.procs {
		f.Left = f.Left || w.alive
	}
	_, act := decide.Next(ev, decide.Running, f)
	switch act {
	case decide.ActSchedule:
		c.wanted = true
		c.news()
	case decide.ActReplace, decide.ActIgnore:
	default:
		if ev != decide.EvPeerLive && ev != decide.EvNodeGone { // of which the others hear without it
			c.announce(at)
		}
		c.endRound(act == decide.ActKeep, at)
	}
	return act
}

// announce tells the others why the round ends.
func (c *liveHost) announce(at int64) {
	s, r := c.s(), c.round()
	s.after(s.transit(c.a.host), func() {
		if r.record == nil {
			r.record = &liveRecord{at}
			for _, tell := range r.told {
				tell(r.record)
			}
		}
	})
}

// endRound ends a round, and its workers, unless it keeps them.
func (c *liveHost) endRound(keep bool, at int64) {
	c.pending = true
	pause := c.s().pause(5 * time.Millisecond)
	if keep {
		c.change++
		if at < 0 {
			c.fruitless = 0
		}
		c.send(func(*worker) bool { return true }, at)
	} else {
		c.end(false)
		pause = c.s().pause(c.a.s.cfg.Stop)
	}
	c.a.rejoin(pause)
}

// heard is what happens to the workers when the set of nodes changes.
func (c *liveHost) heard(change rendezvous.Change) {
	ev, f := decide.EvNodeGone, decide.Facts{Joins: change.Kind == rendezvous.NodesWaiting}
	if f.Joins {
		ev = decide.EvNodesWaiting
	}
	c.handle(ev, f, -1)
}

// again asks for another round, unless too many in a row did not help.
func (c *liveHost) again() {
	if c.fruitless++; c.fruitless > live.MostFruitless {
		c.giveUp()
		return
	}
	fruitless := c.fruitless
	c.handle(decide.EvLiveChange, decide.Facts{}, -1)
	c.fruitless = fruitless
}

// giveUp ends the workers, which is a failure: all begin anew.
func (c *liveHost) giveUp() {
	c.s().gaveUp++
	c.formed = false
	c.handle(decide.EvFailed, decide.Facts{}, -1)
}

// end ends the workers. Of those of a host that is lost nobody hears.
func (c *liveHost) end(silent bool) {
	for i := range c.a.local {
		if w := c.procs[i]; w != nil && w.alive {
			w.die(silent)
		}
	}
	c.formed = false
}

// kill ends one worker, and the agent acts on it.
func (c *liveHost) kill(local int) {
	w := c.procs[local]
	if w == nil || !w.alive || c.a.phase != running {
		return
	}
	c.s().trace("fault: worker %s is killed", w.id)
	w.die(false)
	goesOn := c.inRound()
	c.s().after(c.s().pause(5*time.Millisecond), func() {
		if !goesOn() {
			return
		}
		if c.handle(decide.EvFailing, decide.Facts{Member: w.info.Member}, -1) == decide.ActReplace {
			c.start(local)
		} else {
			c.fruitless = 0
		}
	})
}

// together reports whether all workers are members of the round's group.
func (c *liveHost) together() bool {
	for i := range c.a.local {
		if w := c.procs[i]; w == nil || !w.alive || w.group == nil || !w.made || w.group.round != (roundID{c.in, c.a.part.Round.Round}) {
			return false
		}
	}
	return c.formed && !c.pending
}
