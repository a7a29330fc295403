package logs

import (
	"testing"
	"time"
)

// wakeups says how often a follower looks in ten seconds at a file that gets a line every
// interval, and how long the last line waits at most.
func wakeups(interval time.Duration) (looks int, longest time.Duration) {
	var p pace
	start := time.Unix(0, 0)
	for now, next := start, start; now.Sub(start) < 10*time.Second; {
		if now.Before(next) { // nothing is new: it is woken by the next line
			p.still()
			now = next
		}
		longest = max(longest, now.Sub(next))
		next = now.Truncate(interval).Add(interval)
		looks++
		if d := p.moved(now); d > 0 {
			now = now.Add(d)
		} else {
			now = now.Add(time.Microsecond)
		}
	}
	return looks, longest
}

func TestPace(t *testing.T) {
	for _, tt := range []struct {
		interval time.Duration
		most     int
		longest  time.Duration
	}{
		{time.Second, 10, 0},
		{4 * time.Millisecond, 2500, 0},
		{2 * time.Millisecond, 10 * (10 + burst), rest},
		{100 * time.Microsecond, 10 * (10 + burst), rest},
		{time.Microsecond, 10 * (10 + burst), rest},
	} {
		looks, longest := wakeups(tt.interval)
		if looks > tt.most+burst || longest > tt.longest {
			t.Errorf("a line every %v: %d looks in 10 s, want %d; one waits %v, want %v", tt.interval, looks, tt.most, longest, tt.longest)
		}
	}
}
