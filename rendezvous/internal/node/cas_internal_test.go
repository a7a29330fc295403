package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// A node is lost if it was silent until it was gone, and has left if it was heard of again
// before.
func TestLostOrLeft(t *testing.T) {
	for _, tt := range []struct {
		name  string
		heard bool
		want  rendezvous.ChangeKind
	}{{"silent", false, rendezvous.NodeLost}, {"heard of again", true, rendezvous.NodeLeft}} {
		synctest.Test(t, func(t *testing.T) {
			c := &cas{n: &Node{}, late: state.Set{}, limit: 15 * time.Second}
			peer, other := state.Node{Addr: "peer", PID: 1}, state.Node{Addr: "other", PID: 2}
			st := state.NewState()
			st.Complete, st.Participants = true, map[state.Node]int{peer: 0, other: 1}
			see := func(heard ...state.Node) {
				time.Sleep(11 * time.Second)
				for _, n := range heard {
					st.LastHeartbeats[n] = time.Now()
				}
				if err := c.accept(pickle.EncodeText(st)); err != nil {
					t.Fatal(err)
				}
			}
			see(peer, other)
			see(other)
			if tt.heard {
				st.LastHeartbeats[peer] = time.Now()
				if err := c.accept(pickle.EncodeText(st)); err != nil {
					t.Fatal(err)
				}
			}
			before := c.state
			delete(st.Participants, peer)
			delete(st.LastHeartbeats, peer)
			if err := c.accept(pickle.EncodeText(st)); err != nil {
				t.Fatal(err)
			}
			if got := c.compare(before, 0); len(got) != 1 || got[0].Kind != tt.want || got[0].Node != "peer" {
				t.Errorf("%s: %v, want %v of peer", tt.name, got, tt.want)
			}
		})
	}
}
