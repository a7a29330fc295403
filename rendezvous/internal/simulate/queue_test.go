package simulate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestQueue has events happen in order, those of one time in the order of the
// calls, and never two at one instant.
func TestQueue(t *testing.T) {
	var q queue
	rng := rand.New(rand.NewPCG(1, 1))
	type happening struct {
		at    time.Duration
		order int
	}
	var want, got []happening
	instants := map[time.Duration]bool{}
	for i := range 1000 {
		h := happening{time.Duration(rng.IntN(20)) * time.Millisecond, i}
		want = append(want, h)
		q.at(h.at, func() {
			got = append(got, h)
			if instants[q.now] || q.now < h.at || q.now > h.at+1000 {
				t.Errorf("what is due at %v happens at %v", h.at, q.now)
			}
			instants[q.now] = true
		})
	}
	stopped := q.after(time.Millisecond, func() { t.Error("a stopped timer has fired") })
	stopped.stop()
	for len(q.heap) > 0 {
		q.step()
	}
	slices.SortStableFunc(want, func(a, b happening) int { return int(a.at - b.at) })
	if !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
}
