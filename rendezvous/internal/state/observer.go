package state

import (
	"slices"
	"time"
)

// mostAhead bounds how far an Observer follows other clocks.
const mostAhead = time.Hour

// An Observer follows the heartbeats of nodes whose clocks may not be ours. A
// node is silent when its heartbeat has not changed for too long by our clock,
// whatever time the heartbeat names.
//
// PyTorch's agents compare heartbeats with their own clocks. So as not to be
// dropped by one whose clock is ahead, a node writes its times by Clock.
type Observer struct {
	seen  map[Node]sighting
	ahead time.Duration // of the others' clocks
}

// A sighting is when a heartbeat was first seen to be what it is.
type sighting struct{ heartbeat, at time.Time }

// See notes the heartbeats of a state, but not those of the nodes that skip holds.
func (o *Observer) See(now time.Time, st *State, skip func(Node) bool) {
	if o.seen == nil {
		o.seen = map[Node]sighting{}
	}
	for n := range o.seen {
		if _, known := st.LastHeartbeats[n]; !known || skip(n) {
			delete(o.seen, n)
		}
	}
	for n, beat := range st.LastHeartbeats {
		if skip(n) {
			continue
		}
		if s, known := o.seen[n]; !known || !s.heartbeat.Equal(beat) {
			o.seen[n] = sighting{heartbeat: beat, at: now}
			if ahead := beat.Sub(now); ahead > o.ahead && ahead < mostAhead {
				o.ahead = ahead
			}
		}
	}
}

// Len returns the number of nodes observed.
func (o *Observer) Len() int { return len(o.seen) }

// Silent returns the nodes without a new heartbeat for longer than limit, sorted.
func (o *Observer) Silent(now time.Time, limit time.Duration) []Node {
	var silent []Node
	for n, s := range o.seen {
		if now.Sub(s.at) > limit {
			silent = append(silent, n)
		}
	}
	slices.SortFunc(silent, Node.Compare)
	return silent
}

// Next returns when the next node may turn out to be silent; zero for never.
func (o *Observer) Next(limit time.Duration) time.Time {
	next := time.Time{}
	for _, s := range o.seen {
		if at := s.at.Add(limit + 1); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// Forget ends the observation of a node.
func (o *Observer) Forget(n Node) { delete(o.seen, n) }

// Clock returns the time to be written into a state at now: that of the clock
// which is furthest ahead.
func (o *Observer) Clock(now time.Time) time.Time { return now.Add(o.ahead) }

// When returns when Clock will show a time.
func (o *Observer) When(clock time.Time) time.Time { return clock.Add(-o.ahead) }

// Fix corrects a deadline that another clock has set: a last call takes as long as
// it should by ours. before is the deadline that was known before.
func (o *Observer) Fix(now time.Time, st *State, before time.Time, lastCall time.Duration) {
	if st.Deadline.IsZero() || st.Deadline.Equal(before) {
		return
	}
	if left := st.Deadline.Sub(o.Clock(now)); left < 0 || left > lastCall {
		st.Deadline = o.Clock(now).Add(lastCall)
	}
}
