package state_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

var (
	now   = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	later = now.Add(time.Hour)
	rules = state.Rules{MinNodes: 2, MaxNodes: 3, LastCall: 30 * time.Second, KeepAliveInterval: 5 * time.Second}

	me = state.Node{Addr: "b", PID: 2}
	n1 = state.Node{Addr: "a", PID: 9}
	n2 = state.Node{Addr: "b", PID: 10}
	n3 = state.Node{Addr: "c", PID: 1}
)

// newState makes a State; every node in it has a fresh heartbeat.
func newState(change func(*state.State)) *state.State {
	s := state.NewState()
	change(s)
	for n := range s.Participants {
		s.LastHeartbeats[n] = now
	}
	for n := range s.WaitList {
		s.LastHeartbeats[n] = now
	}
	for n := range s.RedundancyList {
		s.LastHeartbeats[n] = now
	}
	return s
}

func with(s *state.State, nodes ...state.Node) {
	for _, n := range nodes {
		s.Participants[n] = 0
	}
}

// Source: _RendezvousJoinOp; spec/rendezvous.md A.5, rows 1 to 10.
func TestJoin(t *testing.T) {
	type st = state.State
	tests := []struct {
		name     string
		state    *st
		deadline time.Time
		want     state.Action
	}{
		{"1 closed", newState(func(s *st) { s.Closed = true; with(s, me) }), later, state.FailClosed},
		{"1 closed, a spare", newState(func(s *st) { s.Closed = true; s.RedundancyList.Add(me) }), later, state.FailRedundant},
		{"2 a spare, full", newState(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.RedundancyList.Add(me) }), later, state.Sync},
		{"2 a spare, full, heartbeat due", newState(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.RedundancyList.Add(me) }), later, state.KeepAlive},
		{"2 a spare, room", newState(func(s *st) { s.Complete = true; with(s, n1, n2); s.RedundancyList.Add(me) }), later, state.RemoveFromRedundancyList},
		{"2 a spare, past its deadline", newState(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.RedundancyList.Add(me) }), now.Add(-time.Hour), state.Sync},
		{"3 complete", newState(func(s *st) { s.Complete = true; with(s, me, n1) }), later, state.Finish},
		{"3 complete, past its deadline", newState(func(s *st) { s.Complete = true; with(s, me, n1) }), now.Add(-time.Second), state.Finish},
		{"4 too late, participant", newState(func(s *st) { with(s, me) }), now.Add(-time.Second), state.RemoveFromParticipants},
		{"4 too late, waiting", newState(func(s *st) { s.Complete = true; with(s, n1); s.WaitList.Add(me) }), now.Add(-5 * time.Second), state.RemoveFromWaitList},
		{"4 too late, nowhere", newState(func(s *st) {}), now.Add(-time.Second), state.FailTimeout},
		{"4 much too late", newState(func(s *st) { with(s, me) }), now.Add(-5*time.Second - 1), state.FailTimeout},
		{"4 at the deadline it is not too late", newState(func(s *st) {}), now, state.AddToParticipants},
		{"5 complete with room", newState(func(s *st) { s.Complete = true; with(s, n1, n2) }), later, state.AddToWaitList},
		{"5 waits already", newState(func(s *st) { s.Complete = true; with(s, n1, n2); s.WaitList.Add(me) }), later, state.Sync},
		{"6 complete and full", newState(func(s *st) { s.Complete = true; with(s, n1, n2, n3) }), later, state.AddToRedundancyList},
		{"6 complete and full, waiting", newState(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.WaitList.Add(me) }), later, state.Sync},
		{"7 the last call is over", newState(func(s *st) { with(s, me, n1); s.Deadline = now.Add(-1) }), later, state.MarkComplete},
		{"7 the last call is not over", newState(func(s *st) { with(s, me, n1); s.Deadline = now }), later, state.Sync},
		{"7 too few", newState(func(s *st) { with(s, me); s.Deadline = now.Add(-1) }), later, state.Sync},
		{"7 no last call", newState(func(s *st) { with(s, me, n1) }), later, state.Sync},
		{"8 not complete", newState(func(s *st) { with(s, n1) }), later, state.AddToParticipants},
		{"8 not complete, waiting", newState(func(s *st) { with(s, n1); s.WaitList.Add(me) }), later, state.AddToParticipants},
		{"10 nothing to do", newState(func(s *st) { with(s, me) }), later, state.Sync},
		{"9 heartbeat due", newState(func(s *st) { with(s, me) }), later, state.KeepAlive},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want == state.KeepAlive {
				tt.state.LastHeartbeats[me] = now.Add(-rules.KeepAliveInterval)
			}
			before := tt.state.Clone()
			if got := tt.state.Join(me, rules, now, tt.deadline); got != tt.want {
				t.Errorf("Join = %v, want %v", got, tt.want)
			}
			if d := cmp.Diff(before, tt.state); d != "" {
				t.Errorf("a decision changed the state: %s", d)
			}
		})
	}
}

func TestOtherDecisions(t *testing.T) {
	in := newState(func(s *state.State) { with(s, me) })
	old := newState(func(s *state.State) { with(s, me) })
	old.LastHeartbeats[me] = now.Add(-5 * time.Second)
	out := newState(func(s *state.State) { with(s, n1) })
	closed := newState(func(s *state.State) { s.Closed = true })
	for _, tt := range []struct {
		name      string
		got, want state.Action
	}{
		{"exit, in", in.Exit(me), state.RemoveFromParticipants},
		{"exit, out", out.Exit(me), state.Finish},
		{"stay, fresh", in.Stay(me, rules, now), state.Finish},
		{"stay, due", old.Stay(me, rules, now), state.KeepAlive},
		{"stay, dropped by the others", out.Stay(me, rules, later), state.Finish},
		{"end", in.End(), state.MarkClosed},
		{"end, closed", closed.End(), state.Finish},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
}

func TestDo(t *testing.T) {
	type st = state.State
	tests := []struct {
		name   string
		before func(*st)
		action state.Action
		after  func(*st)
	}{
		{"the first joins", func(s *st) {}, state.AddToParticipants, func(s *st) { with(s, me) }},
		{"from the wait list", func(s *st) { s.WaitList.Add(me) }, state.AddToParticipants, func(s *st) { with(s, me) }},
		{"enough: the last call begins", func(s *st) { with(s, n1) }, state.AddToParticipants,
			func(s *st) { with(s, me, n1); s.Deadline = now.Add(30 * time.Second) }},
		{"full: complete", func(s *st) { with(s, n1, n3); s.Deadline = later }, state.AddToParticipants,
			func(s *st) { s.Complete = true; s.Participants = map[state.Node]int{n1: 0, me: 1, n3: 2} }},
		{"ranks are by address, then by PID as a number", func(s *st) { with(s, n2, n1, me) }, state.MarkComplete,
			func(s *st) { s.Complete = true; s.Participants = map[state.Node]int{n1: 0, me: 1, n2: 2} }},
		{"wait", func(s *st) { s.RedundancyList.Add(me) }, state.AddToWaitList, func(s *st) { s.WaitList.Add(me) }},
		{"spare", func(s *st) {}, state.AddToRedundancyList, func(s *st) { s.RedundancyList.Add(me) }},
		{"leave a complete round", func(s *st) { s.Complete = true; with(s, me, n1) }, state.RemoveFromParticipants,
			func(s *st) { s.Complete = true; with(s, n1) }},
		{"the last one leaves: the next round", func(s *st) { s.Complete = true; s.Round = 4; with(s, me) }, state.RemoveFromParticipants,
			func(s *st) { s.Round = 5 }},
		{"too few are left for the last call", func(s *st) { s.Deadline = later; with(s, me, n1) }, state.RemoveFromParticipants,
			func(s *st) { with(s, n1) }},
		{"enough are left", func(s *st) { s.Deadline = later; with(s, me, n1, n2) }, state.RemoveFromParticipants,
			func(s *st) { s.Deadline = later; with(s, n1, n2) }},
		{"give up waiting", func(s *st) { s.WaitList.Add(me) }, state.RemoveFromWaitList, func(s *st) {}},
		{"no spare any more", func(s *st) { s.RedundancyList.Add(me) }, state.RemoveFromRedundancyList, func(s *st) {}},
		{"close", func(s *st) { with(s, n1) }, state.MarkClosed, func(s *st) { with(s, n1); s.Closed = true }},
		{"sync does nothing", func(s *st) { with(s, n1) }, state.Sync, func(s *st) { with(s, n1) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := newState(tt.before)
			got.Do(tt.action, me, rules, now)
			if d := cmp.Diff(newState(tt.after), got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// Source: _sanitize.
func TestDrop(t *testing.T) {
	s := newState(func(s *state.State) {
		s.Complete = true
		with(s, me, n1)
		s.WaitList.Add(n2)
		s.RedundancyList.Add(n3)
	})
	s.Drop(rules, n1, n2, n3)
	if d := cmp.Diff(newState(func(s *state.State) { s.Complete = true; with(s, me) }), s); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	s.Drop(rules, me)
	if s.Round != 1 || s.Complete {
		t.Errorf("after the last one: round %d, complete %v", s.Round, s.Complete)
	}
}

func TestStickyRanks(t *testing.T) {
	s := newState(func(s *state.State) { with(s, n1, n2, n3) })
	// n3 was 0, n1 was 7 of more nodes, n2 is new.
	s.AssignRanks(map[state.Node]int{n3: 0, n1: 7, me: 1})
	if d := cmp.Diff(map[state.Node]int{n3: 0, n1: 1, n2: 2}, s.Participants); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestObserver(t *testing.T) {
	var o state.Observer
	s := state.NewState()
	none := func(state.Node) bool { return false }
	beat := now.Add(time.Minute) // a clock ahead by a minute
	s.LastHeartbeats[n1], s.LastHeartbeats[n2] = beat, now.Add(-time.Hour)
	o.See(now, s, none)
	if got := o.Clock(now); !got.Equal(beat) {
		t.Errorf("Clock is %v, want %v", got, beat)
	}
	s.LastHeartbeats[n1] = beat.Add(5 * time.Second)
	o.See(now.Add(10*time.Second), s, none)
	if got := o.Next(15 * time.Second); !got.Equal(now.Add(15*time.Second + 1)) {
		t.Errorf("Next is %v", got)
	}
	if d := cmp.Diff([]state.Node{n2}, o.Silent(now.Add(16*time.Second), 15*time.Second)); d != "" {
		t.Error(d)
	}
	// A last call that another clock has set takes as long by ours.
	s.Deadline = now.Add(-time.Hour)
	o.Fix(now, s, time.Time{}, 30*time.Second)
	if want := beat.Add(30 * time.Second); !s.Deadline.Equal(want) {
		t.Errorf("deadline %v, want %v", s.Deadline, want)
	}
	// A clock that is far off is not followed.
	s.LastHeartbeats[n3] = now.Add(1000 * time.Hour)
	o.See(now, s, none)
	if got := o.Clock(now); !got.Equal(beat) {
		t.Errorf("Clock is %v, want %v", got, beat)
	}
}
