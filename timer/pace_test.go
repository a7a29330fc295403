package timer

import (
	"math"
	"slices"
	"testing"
	"time"
)

// Steps are counted over half a minute to a minute; not over a restart of the count, and not where a
// worker stands.
func TestPace(t *testing.T) {
	type beat struct {
		after time.Duration
		step  int64
	}
	steps := func(n int, every time.Duration) (beats []beat) {
		for i := range n {
			beats = append(beats, beat{every, int64(i)})
		}
		return beats
	}
	fast := slices.Clip(steps(1000, 100*time.Millisecond))
	for name, tt := range map[string]struct {
		beats []beat
		then  time.Duration
		want  float64
	}{
		"one":                    {steps(1, 0), 0, 0},
		"two":                    {steps(2, time.Second), 0, 1},
		"ten a second":           {fast, 50 * time.Millisecond, 10},
		"slower now":             {append(fast, beat{100 * time.Second, 1000}, beat{100 * time.Second, 1001}, beat{100 * time.Second, 1002}), time.Second, 0.01},
		"a step takes minutes":   {steps(4, 5*time.Minute), 14 * time.Minute, 1.0 / 300},
		"it stands":              {fast, 11 * time.Second, 0},
		"it stands for a moment": {fast, 9 * time.Second, 10},
		"from the beginning":     {append(fast, beat{time.Second, 0}, beat{time.Second, 2}), 0, 2},
		"no step":                {append(fast, beat{time.Second, -1}), 0, 0},
		"a step after none":      {append(fast, beat{time.Second, -1}, beat{time.Second, 5000}), 0, 0},
		"all at once":            {[]beat{{0, 1}, {0, 1000}}, 0, 0},
		"far":                    {[]beat{{0, 0}, {time.Second, math.MaxInt64}}, 0, math.MaxInt64},
	} {
		p, now := pace{}, time.Unix(1000, 0)
		for _, b := range tt.beats {
			now = now.Add(b.after)
			p.beat(b.step, now)
		}
		if got := p.at(now.Add(tt.then)).PerSecond; math.Abs(got-tt.want) > 0.02*tt.want {
			t.Errorf("%s: %v steps per second, want %v", name, got, tt.want)
		}
	}
}
