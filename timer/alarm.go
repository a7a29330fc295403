package timer

import (
	"context"
	"math"
	"time"
)

// An alarm wakes a server up at a time of the wall clock. set is called with the
// server's lock held, one at a time; run runs once.
type alarm interface {
	// set moves the alarm to a time in seconds since 1970; +Inf stops it.
	set(at float64)
	// run calls ring each time the alarm goes off, or the wall clock was moved,
	// until ctx is done.
	run(ctx context.Context, ring func())
	close()
}

// A clockAlarm is made of a Go timer. That one does not know the wall clock, so
// it goes off every interval to look.
type clockAlarm struct {
	timer    *time.Timer
	now      func() time.Time
	interval time.Duration
}

func newClockAlarm(now func() time.Time, interval time.Duration) *clockAlarm {
	a := &clockAlarm{timer: time.NewTimer(interval), now: now, interval: interval}
	a.timer.Stop()
	return a
}

func (a *clockAlarm) set(at float64) {
	if math.IsInf(at, 1) {
		a.timer.Stop()
		return
	}
	left := at - seconds(a.now())
	d := a.interval
	if left < a.interval.Seconds() {
		d = time.Duration(math.Ceil(max(left, 0) * 1e9))
	}
	a.timer.Reset(d)
}

func (a *clockAlarm) run(ctx context.Context, ring func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.timer.C:
			ring()
		}
	}
}

func (a *clockAlarm) close() { a.timer.Stop() }
