package timer

import (
	"math"
	"time"
)

// An alarm wakes a server up at a time of the wall clock.
type alarm interface {
	// set moves the alarm to a time in seconds since 1970. The server's lock is held.
	set(at float64)
	// wait returns true when the alarm goes off, perhaps early, or when the wall
	// clock was set; false after close. One goroutine calls it.
	wait() bool
	close()
}

// A goAlarm is made of a Go timer. That one does not know the wall clock, so
// it goes off every interval to look.
type goAlarm struct {
	timer    *time.Timer
	now      func() time.Time
	interval time.Duration
	closed   chan struct{}
}

func newGoAlarm(now func() time.Time, interval time.Duration) *goAlarm {
	a := &goAlarm{timer: time.NewTimer(interval), now: now, interval: interval, closed: make(chan struct{})}
	a.timer.Stop()
	return a
}

func (a *goAlarm) set(at float64) {
	d := a.interval
	if left := at - seconds(a.now()); left < d.Seconds() {
		d = time.Duration(math.Ceil(max(left, 0) * 1e9))
	}
	a.timer.Reset(d)
}

func (a *goAlarm) wait() bool {
	select {
	case <-a.timer.C:
		return true
	case <-a.closed:
		return false
	}
}

func (a *goAlarm) close() { close(a.closed) }
