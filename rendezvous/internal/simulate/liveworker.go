package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/job/live"
)

// A worker is a process of a live group.
type worker struct {
	c            *liveHost
	id           string
	local        int // rank
	node         int // group rank, in its last membership
	info         *live.Worker
	alive        bool
	whole        bool // it has had the members' state
	inconsistent bool
	step         int64
	of           int64  // the lineage of its state
	state        uint64 // what its steps, and the memberships in which it has completed them, have made of it
	stopAt       int64  // -1: none
	change       int    // the last that it has heard of
	rested       int    // the last for which it paused
	uuid         int64  // of its last membership
	joined       int    // the change of that
	group        *liveGroup
	made         bool             // it has all its connections to that
	last         [2]time.Duration // when what was said last arrives, from and to it
}

// A liveGroup is a membership as its members see it.
type liveGroup struct {
	uuid    int64
	round   roundID
	plan    *live.Plan
	here    map[int]*worker
	arrived int              // members that wait in the present collective
	states  map[int64]uint64 // what members had after each step, and at the beginning
}

// say has the agent hear something.
func (w *worker) say(kind string, m live.Said) {
	if w.alive {
		w.deliver(0, func() {
			if w.info.Heard = true; !w.info.Knows(&m) {
				w.c.s().fail("worker %s says what its agent does not believe: %+v", w.id, m)
			}
			w.info.Hear(kind, &m)
			w.c.news()
		})
	}
}

// deliver makes a message arrive, in order; way is 0 for those to the agent.
func (w *worker) deliver(way int, do func()) {
	s := w.c.s()
	w.last[way] = max(s.now+s.pause(time.Millisecond), w.last[way]+1)
	s.at(w.last[way], func() {
		if w.alive {
			do()
		}
	})
}

func (w *worker) die(silent bool) {
	w.alive, w.info.Gone = false, true
	w.part(silent)
}

// part takes the worker out of its group: collectives do not complete any more, and some of
// the others notice.
func (w *worker) part(silent bool) {
	g, s := w.group, w.c.s()
	if w.group = nil; g == nil || silent {
		return
	}
	for rank := range g.plan.Handles {
		if other := g.here[rank]; other != nil && other.group == g && s.rng.IntN(3) > 0 {
			s.after(s.pause(50*time.Millisecond), func() { other.failed(g) })
		}
	}
}

// failed is a collective's error.
func (w *worker) failed(g *liveGroup) {
	if w.alive && w.group == g {
		w.say("failed", live.Said{Change: w.joined, Error: "connection closed"})
		w.part(false)
	}
}

// stop hears that the members change: before a step, or at once.
func (w *worker) stop(change int, at int64) {
	s := w.c.s()
	w.change = change
	if at >= 0 && w.group != nil && w.made {
		if w.step < at {
			w.stopAt = at
		} else {
			w.say("at", live.Said{Change: change, Step: w.step})
		}
		return
	}
	s.after(s.pause(100*time.Millisecond), func() {
		if w.alive && w.change == change && w.rested < change {
			w.inconsistent = w.inconsistent || w.whole && s.cfg.Inconsistent > 0 && s.rng.Float64() < s.cfg.Inconsistent
			w.part(!w.made) // others have connected to it, and do not notice
			w.ready()
		}
	})
}

func (w *worker) ready() {
	m := live.Said{Change: w.change, Handle: fmt.Sprintf("%s.%d", w.id, w.change), Step: w.step, Lineage: w.of}
	if w.stopAt, w.rested = -1, w.change; w.inconsistent {
		m.Step = -1
	}
	w.say("ready", m)
}

// become takes part in a membership.
func (w *worker) become(in roundID, change, node, rank int, plan *live.Plan) {
	s, uuid := w.c.s(), plan.UUID
	if change < w.change {
		return // another change has begun
	}
	w.change = change
	if uuid <= w.uuid || plan.Handles[rank] != w.info.Ready.Handle {
		s.fail("worker %s becomes rank %d of the membership %d after %d", w.id, rank, uuid, w.uuid)
	}
	w.part(false)
	g := s.groups[uuid]
	if g == nil {
		g = &liveGroup{uuid: uuid, round: in, plan: plan, here: map[int]*worker{}, states: map[int64]uint64{}}
		s.groups[uuid] = g
	}
	if !slices.Equal(g.plan.Handles, plan.Handles) || g.here[rank] != nil {
		s.fail("two memberships have the UUID %d, or two workers its rank %d", uuid, rank)
	}
	g.here[rank], w.group, w.made, w.uuid, w.joined, w.node = w, g, false, uuid, change, node
	s.after(live.Timeout/2, func() {
		if !w.made {
			w.failed(g)
		}
	})
	if len(g.here) == len(plan.Handles) {
		s.after(w.c.cut()+s.pause(20*time.Millisecond), g.make)
	}
}

// whole reports whether all are still members.
func (g *liveGroup) whole() bool {
	for rank := range g.plan.Handles {
		if w := g.here[rank]; w == nil || !w.alive || w.group != g {
			return false
		}
	}
	return true
}

// make brings the states of the members in line and connects them. Each is done by itself: a change
// may find one that computes already, and another one that still waits for its connections.
func (g *liveGroup) make() {
	if !g.whole() {
		return
	}
	s := g.here[0].c.s()
	newest, last, some := int64(-1), int64(-1), false
	for rank := range g.plan.Handles {
		w := g.here[rank]
		if some = some || w.whole; w.whole && !w.inconsistent && w.of >= newest {
			if w.of > newest {
				newest, last = w.of, -1
			}
			last = max(last, w.step)
		}
		if last := g.here[max(rank-1, 0)]; rank > 0 && (last.node > w.node || last.node == w.node && last.local >= w.local) {
			s.fail("membership %d: workers %s and %s are in the wrong order", g.uuid, g.here[rank-1].id, w.id)
		}
	}
	for _, h := range s.hosts {
		if a, ok := h.agent.(*agent); ok && !some && a.phase == running && (roundID{a.workers.in, a.part.Round.Round}) == g.round {
			for _, w := range a.workers.procs {
				if w.alive && w.whole && !w.inconsistent {
					s.fail("membership %d begins anew, without the state of worker %s", g.uuid, w.id)
				}
			}
		}
	}
	if source := g.plan.Source; source >= 0 {
		from := g.here[source]
		if some && !from.whole && last > 0 || from.inconsistent { // before the first step, each may begin
			s.fail("membership %d: the source %s has no state", g.uuid, from.id)
		}
		for rank := range g.plan.Handles {
			if w := g.here[rank]; slices.Contains(g.plan.Joined, rank) || g.plan.Steps[rank] != from.step { // else it keeps its own
				w.step, w.state, w.inconsistent, w.whole = from.step, from.state, false, true
			}
		}
	}
	for rank := range g.plan.Handles {
		w := g.here[rank]
		if !w.whole || w.inconsistent || w.step != g.here[0].step || w.step < last {
			s.fail("membership %d: worker %s is at step %d, others at %d or %d", g.uuid, w.id, w.step, g.here[0].step, last)
		}
		w.of = cmp.Or(g.plan.Lineage, g.uuid)
		g.same(w)
	}
	s.trace("membership %d: %d members", g.uuid, len(g.here))
	s.memberships++
	for rank := range g.plan.Handles {
		w := g.here[rank]
		s.after(s.pause(time.Second), func() {
			if w.alive && w.group == g && w.change == w.joined {
				w.made = true
				w.say("done", live.Said{Change: w.change})
				w.compute(g)
			}
		})
	}
}

// same checks that a member has the state that others have, or had, at its step of this membership.
func (g *liveGroup) same(w *worker) {
	if state, known := g.states[w.step]; known && state != w.state {
		w.c.s().fail("membership %d: worker %s is at step %d with another state than others", g.uuid, w.id, w.step)
	}
	g.states[w.step] = w.state
}

// cut is how long the host cannot be reached by others yet.
func (c *liveHost) cut() time.Duration { return max(0, c.a.host.cutUntil-c.s().now) }

// compute is a step up to its collective, which needs all members; each completes it for itself.
func (w *worker) compute(g *liveGroup) {
	s := w.c.s()
	if w.stopAt >= 0 && w.step >= w.stopAt {
		w.group = nil // which the others notice in their next collective, if they do not rest, too
		w.ready()
		return
	}
	s.after(s.cfg.Step+s.pause(s.cfg.Step/4)+w.c.cut(), func() {
		if w.group != g {
			return
		}
		if g.arrived++; g.arrived < len(g.plan.Handles) || !g.whole() {
			return
		}
		g.arrived = 0
		for rank := range g.plan.Handles {
			w := g.here[rank]
			s.after(s.pause(50*time.Millisecond), func() { // or the collective has failed for this one
				if w.alive && w.group == g {
					w.step++
					w.of = g.uuid
					w.state = w.state*6364136223846793005 + uint64(g.uuid)
					g.same(w)
					w.compute(g)
				}
			})
		}
	})
}
