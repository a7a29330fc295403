package node_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// met is what one node's Next has returned.
type met struct {
	node rendezvous.Scaler
	info *rendezvous.Info
}

// follow has a node take part in round after round, as the changes want it.
func follow(t *testing.T, h rendezvous.Handler, all chan<- met) {
	for {
		info, err := h.Next(t.Context())
		if err != nil {
			return // the test has ended
		}
		all <- met{h.(rendezvous.Scaler), info}
		select {
		case <-h.Changes():
		case <-t.Context().Done():
			return
		}
	}
}

// roundOf waits for a round of n nodes, and returns their ranks.
func roundOf(t *testing.T, all <-chan met, n int) map[rendezvous.Scaler]int {
	t.Helper()
	ranks := map[int]map[rendezvous.Scaler]int{} // by round
	for {
		select {
		case m := <-all:
			i := m.info.Round
			if ranks[i] == nil {
				ranks[i] = map[rendezvous.Scaler]int{}
			}
			if ranks[i][m.node] = m.info.Rank; m.info.WorldSize == n && len(ranks[i]) == n {
				return ranks[i]
			}
		case <-time.After(patience):
			t.Fatalf("no round of %d", n)
		}
	}
}

// TestScale has a job of five that is wanted to have three, loses who holds the rendezvous, and
// is wanted to have four.
func TestScale(t *testing.T) {
	b, all, spares := newBallot(), make(chan met, 64), make(chan rendezvous.Scaler, 64)
	var following sync.WaitGroup
	t.Cleanup(following.Wait)
	for i := range 5 {
		h := elected(t, b, 1, 5, fmt.Sprint("host", i), longLastCall)
		h.(rendezvous.Scaler).OnSpare(func() { spares <- h.(rendezvous.Scaler) })
		following.Go(func() { follow(t, h, all) })
	}
	before := roundOf(t, all, 5)
	var last rendezvous.Scaler // asks to be left out
	for h, rank := range before {
		if rank == 4 {
			last = h
		}
	}
	if err := last.Scale(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	three := roundOf(t, all, 3)
	for h, rank := range three {
		if rank != before[h] || h.Wanted() != 3 {
			t.Errorf("rank %d of 3 was %d of 5; %d are wanted", rank, before[h], h.Wanted())
		}
	}
	for range 2 {
		if _, stays := three[<-spares]; stays {
			t.Error("a node of the round was a spare")
		}
	}
	b.mu.Lock()
	leader := b.leader
	b.mu.Unlock()
	b.remove(leader)
	for scaled := false; !scaled; { // a round may yet end with who held it
		for h := range roundOf(t, all, 3) {
			scaled = h.Scale(t.Context(), 4) == nil || scaled
		}
	}
	roundOf(t, all, 4)
}

func TestScaleRefused(t *testing.T) {
	for _, tt := range []struct {
		min, max, want int
		says           string
	}{
		{2, 2, 1, "no more and no fewer"},
		{1, 2, 3, "1 to 2 hosts (--nnodes), and 3 are asked for"},
		{2, 3, 1, "2 to 3 hosts (--nnodes), and 1 are asked for"},
		{1, 3, 2, "cannot be reached"}, // it has not begun
	} {
		h := open(t, freeEndpoint(t), tt.min, tt.max, "a", nil)
		if err := h.(rendezvous.Scaler).Scale(t.Context(), tt.want); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%d of %d:%d: %v, want %q", tt.want, tt.min, tt.max, err, tt.says)
		}
	}
}
