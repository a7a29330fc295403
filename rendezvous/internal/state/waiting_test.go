package state_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

func TestWaiting(t *testing.T) {
	name := func(n state.Node) string { return "host-" + n.Addr }
	some := newState(func(s *state.State) { with(s, n3, n1); s.Deadline = now.Add(1500 * time.Millisecond) })
	running := newState(func(s *state.State) {
		s.Complete = true
		with(s, n1, n3)
		s.WaitList.Add(me)
		s.RedundancyList.Add(n2)
	})
	many := newState(func(s *state.State) {
		for i := range 20 {
			s.Participants[state.Node{Addr: fmt.Sprintf("%02d", 19-i)}] = 0
		}
	})
	one := state.Rules{MinNodes: 3, MaxNodes: 3}
	for _, tt := range []struct {
		w    rendezvous.Waiting
		want string
	}{
		{some.Waiting(now, rules, nil, name), "2 of 2 to 3 nodes have joined (host-a, host-c); last call ends in 2s"},
		{some.Waiting(now, one, map[state.Node]int{n1: 0, me: 1}, name), "2 of 3 nodes have joined (host-a, host-c), missing host-b; last call ends in 2s"},
		{running.Waiting(now, rules, nil, name), "1 of 2 to 3 nodes have joined (host-b), 2 still in the round before, 1 spare"},
		{many.Waiting(now, one, nil, name), "20 of 3 nodes have joined (host-00, host-01, host-02, host-03, host-04, host-05, host-06, host-07 and 12 more)"},
		{rendezvous.Waiting{Note: "for etcd"}, "for etcd"},
		{rendezvous.Waiting{Note: "for \x1b[31mn1\nn2\u009b"}, "for n1 n2"},
		{rendezvous.Waiting{Joined: 1, MinNodes: 2, MaxNodes: 2, Known: []string{"n1\x1b]0;owned\a\nx"}, NumMissing: 1, Missing: []string{"\u202en2"}}, "1 of 2 nodes have joined (n1 x), missing n2"},
		{rendezvous.Waiting{Joined: 1, MinNodes: 2, MaxNodes: 2, NumMissing: 1}, "1 of 2 nodes have joined, 1 missing"},
		{rendezvous.Waiting{Joined: 1, MinNodes: 2, MaxNodes: 2, Left: 61 * time.Second}, "1 of 2 nodes have joined; giving up in 1m1s"},
	} {
		if got := tt.w.String(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
