package parallel_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/wait/parallel"
)

func TestMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		began := time.Now()
		got := parallel.Map(10, 3, func(i int) int {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Second)
			now.Add(-1)
			return i * i
		})
		if want := []int{0, 1, 4, 9, 16, 25, 36, 49, 64, 81}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if most.Load() != 3 || time.Since(began) != 4*time.Second {
			t.Errorf("%d at a time, in %v; want 3, in 4s", most.Load(), time.Since(began))
		}
	})
	if got := parallel.Map(0, 3, func(i int) int { return i }); len(got) != 0 {
		t.Errorf("got %v of nothing", got)
	}
}
