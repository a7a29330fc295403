package agent

import (
	"testing"
	"time"
)

// Workers that idle are found out in time however short the timeout is, though their
// CPU time comes in ticks: each of eight uses half a percent of a CPU in the background.
func TestIdleWorkersHang(t *testing.T) {
	const tick = 10 * time.Millisecond
	for _, timeout := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute} {
		for _, busy := range []bool{false, true} {
			began := time.Unix(0, 0)
			at := func(now time.Time) map[int]vital {
				v := map[int]vital{}
				for i := range 8 {
					// The ticks of the workers come at different times.
					used := now.Add(time.Duration(i)*270*time.Millisecond).Sub(began) / 200
					if busy && i == 3 {
						used *= 6 // 3 %
					}
					v[i] = vital{cpu: used.Truncate(tick), written: 7}
				}
				return v
			}
			w := watched{last: at(began), seen: began, active: began}
			idle, now := time.Duration(0), began
			for idle < timeout && now.Sub(began) < 2*time.Minute {
				now = now.Add(lookEvery(timeout))
				idle = w.look(at(now), now)
			}
			if took := now.Sub(began); busy != (took >= 2*time.Minute) || !busy && took > timeout+2*lookEvery(timeout) {
				t.Errorf("timeout %v, one busy: %t: found out after %v", timeout, busy, took)
			}
		}
	}
}
