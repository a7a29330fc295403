package rendezvous_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous"
)

var (
	now   = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	later = now.Add(time.Hour)
	rules = rendezvous.Rules{MinNodes: 2, MaxNodes: 3, LastCall: 30 * time.Second, KeepAliveInterval: 5 * time.Second}

	me = rendezvous.Node{Addr: "b", PID: 2}
	n1 = rendezvous.Node{Addr: "a", PID: 9}
	n2 = rendezvous.Node{Addr: "b", PID: 10}
	n3 = rendezvous.Node{Addr: "c", PID: 1}
)

// state makes a State; every node in it has a fresh heartbeat.
func state(change func(*rendezvous.State)) *rendezvous.State {
	s := rendezvous.NewState()
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

func with(s *rendezvous.State, nodes ...rendezvous.Node) {
	for _, n := range nodes {
		s.Participants[n] = 0
	}
}

// Source: _RendezvousJoinOp; spec/rendezvous.md A.5, rows 1 to 10.
func TestJoin(t *testing.T) {
	type st = rendezvous.State
	tests := []struct {
		name     string
		state    *st
		deadline time.Time
		want     rendezvous.Action
	}{
		{"1 closed", state(func(s *st) { s.Closed = true; with(s, me) }), later, rendezvous.FailClosed},
		{"1 closed, a spare", state(func(s *st) { s.Closed = true; s.RedundancyList.Add(me) }), later, rendezvous.FailRedundant},
		{"2 a spare, full", state(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.RedundancyList.Add(me) }), later, rendezvous.Sync},
		{"2 a spare, full, heartbeat due", state(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.RedundancyList.Add(me) }), later, rendezvous.KeepAlive},
		{"2 a spare, room", state(func(s *st) { s.Complete = true; with(s, n1, n2); s.RedundancyList.Add(me) }), later, rendezvous.RemoveFromRedundancyList},
		{"2 a spare, past its deadline", state(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.RedundancyList.Add(me) }), now.Add(-time.Hour), rendezvous.Sync},
		{"3 complete", state(func(s *st) { s.Complete = true; with(s, me, n1) }), later, rendezvous.Finish},
		{"3 complete, past its deadline", state(func(s *st) { s.Complete = true; with(s, me, n1) }), now.Add(-time.Second), rendezvous.Finish},
		{"4 too late, participant", state(func(s *st) { with(s, me) }), now.Add(-time.Second), rendezvous.RemoveFromParticipants},
		{"4 too late, waiting", state(func(s *st) { s.Complete = true; with(s, n1); s.WaitList.Add(me) }), now.Add(-5 * time.Second), rendezvous.RemoveFromWaitList},
		{"4 too late, nowhere", state(func(s *st) {}), now.Add(-time.Second), rendezvous.FailTimeout},
		{"4 much too late", state(func(s *st) { with(s, me) }), now.Add(-5*time.Second - 1), rendezvous.FailTimeout},
		{"4 at the deadline it is not too late", state(func(s *st) {}), now, rendezvous.AddToParticipants},
		{"5 complete with room", state(func(s *st) { s.Complete = true; with(s, n1, n2) }), later, rendezvous.AddToWaitList},
		{"5 waits already", state(func(s *st) { s.Complete = true; with(s, n1, n2); s.WaitList.Add(me) }), later, rendezvous.Sync},
		{"6 complete and full", state(func(s *st) { s.Complete = true; with(s, n1, n2, n3) }), later, rendezvous.AddToRedundancyList},
		{"6 complete and full, waiting", state(func(s *st) { s.Complete = true; with(s, n1, n2, n3); s.WaitList.Add(me) }), later, rendezvous.Sync},
		{"7 the last call is over", state(func(s *st) { with(s, me, n1); s.Deadline = now.Add(-1) }), later, rendezvous.MarkComplete},
		{"7 the last call is not over", state(func(s *st) { with(s, me, n1); s.Deadline = now }), later, rendezvous.Sync},
		{"7 too few", state(func(s *st) { with(s, me); s.Deadline = now.Add(-1) }), later, rendezvous.Sync},
		{"7 no last call", state(func(s *st) { with(s, me, n1) }), later, rendezvous.Sync},
		{"8 not complete", state(func(s *st) { with(s, n1) }), later, rendezvous.AddToParticipants},
		{"8 not complete, waiting", state(func(s *st) { with(s, n1); s.WaitList.Add(me) }), later, rendezvous.AddToParticipants},
		{"10 nothing to do", state(func(s *st) { with(s, me) }), later, rendezvous.Sync},
		{"9 heartbeat due", state(func(s *st) { with(s, me) }), later, rendezvous.KeepAlive},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want == rendezvous.KeepAlive {
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
	in := state(func(s *rendezvous.State) { with(s, me) })
	old := state(func(s *rendezvous.State) { with(s, me) })
	old.LastHeartbeats[me] = now.Add(-5 * time.Second)
	out := state(func(s *rendezvous.State) { with(s, n1) })
	closed := state(func(s *rendezvous.State) { s.Closed = true })
	for _, tt := range []struct {
		name      string
		got, want rendezvous.Action
	}{
		{"exit, in", in.Exit(me), rendezvous.RemoveFromParticipants},
		{"exit, out", out.Exit(me), rendezvous.Finish},
		{"stay, fresh", in.Stay(me, rules, now), rendezvous.Finish},
		{"stay, due", old.Stay(me, rules, now), rendezvous.KeepAlive},
		{"stay, dropped by the others", out.Stay(me, rules, later), rendezvous.Finish},
		{"end", in.End(), rendezvous.MarkClosed},
		{"end, closed", closed.End(), rendezvous.Finish},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
}

func TestDo(t *testing.T) {
	type st = rendezvous.State
	tests := []struct {
		name   string
		before func(*st)
		action rendezvous.Action
		after  func(*st)
	}{
		{"the first joins", func(s *st) {}, rendezvous.AddToParticipants, func(s *st) { with(s, me) }},
		{"from the wait list", func(s *st) { s.WaitList.Add(me) }, rendezvous.AddToParticipants, func(s *st) { with(s, me) }},
		{"enough: the last call begins", func(s *st) { with(s, n1) }, rendezvous.AddToParticipants,
			func(s *st) { with(s, me, n1); s.Deadline = now.Add(30 * time.Second) }},
		{"full: complete", func(s *st) { with(s, n1, n3); s.Deadline = later }, rendezvous.AddToParticipants,
			func(s *st) { s.Complete = true; s.Participants = map[rendezvous.Node]int{n1: 0, me: 1, n3: 2} }},
		{"ranks are by address, then by PID as a number", func(s *st) { with(s, n2, n1, me) }, rendezvous.MarkComplete,
			func(s *st) { s.Complete = true; s.Participants = map[rendezvous.Node]int{n1: 0, me: 1, n2: 2} }},
		{"wait", func(s *st) { s.RedundancyList.Add(me) }, rendezvous.AddToWaitList, func(s *st) { s.WaitList.Add(me) }},
		{"spare", func(s *st) {}, rendezvous.AddToRedundancyList, func(s *st) { s.RedundancyList.Add(me) }},
		{"leave a complete round", func(s *st) { s.Complete = true; with(s, me, n1) }, rendezvous.RemoveFromParticipants,
			func(s *st) { s.Complete = true; with(s, n1) }},
		{"the last one leaves: the next round", func(s *st) { s.Complete = true; s.Round = 4; with(s, me) }, rendezvous.RemoveFromParticipants,
			func(s *st) { s.Round = 5 }},
		{"too few are left for the last call", func(s *st) { s.Deadline = later; with(s, me, n1) }, rendezvous.RemoveFromParticipants,
			func(s *st) { with(s, n1) }},
		{"enough are left", func(s *st) { s.Deadline = later; with(s, me, n1, n2) }, rendezvous.RemoveFromParticipants,
			func(s *st) { s.Deadline = later; with(s, n1, n2) }},
		{"give up waiting", func(s *st) { s.WaitList.Add(me) }, rendezvous.RemoveFromWaitList, func(s *st) {}},
		{"no spare any more", func(s *st) { s.RedundancyList.Add(me) }, rendezvous.RemoveFromRedundancyList, func(s *st) {}},
		{"close", func(s *st) { with(s, n1) }, rendezvous.MarkClosed, func(s *st) { with(s, n1); s.Closed = true }},
		{"sync does nothing", func(s *st) { with(s, n1) }, rendezvous.Sync, func(s *st) { with(s, n1) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := state(tt.before)
			got.Do(tt.action, me, rules, now)
			if d := cmp.Diff(state(tt.after), got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// Source: _sanitize.
func TestDrop(t *testing.T) {
	s := state(func(s *rendezvous.State) {
		s.Complete = true
		with(s, me, n1)
		s.WaitList.Add(n2)
		s.RedundancyList.Add(n3)
	})
	s.Drop(rules, n1, n2, n3)
	if d := cmp.Diff(state(func(s *rendezvous.State) { s.Complete = true; with(s, me) }), s); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	s.Drop(rules, me)
	if s.Round != 1 || s.Complete {
		t.Errorf("after the last one: round %d, complete %v", s.Round, s.Complete)
	}
}

func TestStickyRanks(t *testing.T) {
	s := state(func(s *rendezvous.State) { with(s, n1, n2, n3) })
	// n3 was 0, n1 was 7 of more nodes, n2 is new.
	s.AssignRanks(map[rendezvous.Node]int{n3: 0, n1: 7, me: 1})
	if d := cmp.Diff(map[rendezvous.Node]int{n3: 0, n1: 1, n2: 2}, s.Participants); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestObserver(t *testing.T) {
	var o rendezvous.Observer
	s := rendezvous.NewState()
	none := func(rendezvous.Node) bool { return false }
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
	if d := cmp.Diff([]rendezvous.Node{n2}, o.Silent(now.Add(16*time.Second), 15*time.Second)); d != "" {
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
