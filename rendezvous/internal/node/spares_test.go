package node_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// met is what one node's Next has returned.
type met struct {
	node rendezvous.Handler
	info *rendezvous.Info
}

// follow has a node take part in round after round, as the changes want it.
func follow(t *testing.T, h rendezvous.Handler, all chan<- met) {
	for {
		info, err := h.Next(t.Context())
		if err != nil {
			return // the test has ended
		}
		all <- met{h, info}
		select {
		case <-h.Changes():
		case <-t.Context().Done():
			return
		}
	}
}

// roundOf waits for a round of n nodes, and returns their ranks.
func roundOf(t *testing.T, all <-chan met, n int) map[rendezvous.Handler]int {
	t.Helper()
	ranks := map[int]map[rendezvous.Handler]int{} // by round
	for {
		select {
		case m := <-all:
			i := m.info.Round
			if ranks[i] == nil {
				ranks[i] = map[rendezvous.Handler]int{}
			}
			if ranks[i][m.node] = m.info.Rank; m.info.WorldSize == n && len(ranks[i]) == n {
				return ranks[i]
			}
		case <-time.After(patience):
			t.Fatalf("no round of %d", n)
		}
	}
}

// TestSpares has five nodes in a job of three: two wait as spares, also after the loss of who holds
// the rendezvous.
func TestSpares(t *testing.T) {
	b, all, spares := newBallot(), make(chan met, 64), make(chan rendezvous.Handler, 64)
	var following sync.WaitGroup
	t.Cleanup(following.Wait)
	for i := range 5 {
		h := elected(t, b, 1, 3, fmt.Sprint("host", i), longLastCall)
		h.OnSpare(func() { spares <- h })
		following.Go(func() { follow(t, h, all) })
	}
	three := roundOf(t, all, 3)
	for range 2 {
		if _, stays := three[<-spares]; stays {
			t.Error("a node of the round was a spare")
		}
	}
	b.mu.Lock()
	leader := b.leader
	b.mu.Unlock()
	b.remove(leader)
	roundOf(t, all, 3)
}
