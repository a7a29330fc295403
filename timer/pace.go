package timer

import "time"

const (
	// paceWindow is the least time over which steps are counted, once there is that much.
	paceWindow = 30 * time.Second
	// paceSilence is how long a worker says nothing at least before it counts as one that stands.
	paceSilence = 10 * time.Second
)

// A pace is how a worker comes on.
type pace struct {
	Heartbeat       // the last
	base, next mark // since when steps are counted, and from when on they will be
}

// A mark is a heartbeat that had a step; its time is zero if there was none.
type mark struct {
	step int64
	time time.Time
}

// beat takes a heartbeat. A step before the last one begins a new count.
func (p *pace) beat(step int64, now time.Time) {
	this := mark{step, now}
	switch {
	case step < 0:
		this = mark{}
		fallthrough
	case p.base.time.IsZero() || step < p.Step:
		p.base, p.next, p.PerSecond = this, this, 0
	case now.After(p.base.time):
		p.PerSecond = (float64(step) - float64(p.base.step)) / now.Sub(p.base.time).Seconds()
		if now.Sub(p.next.time) >= paceWindow {
			p.base, p.next = p.next, this
		}
	}
	p.Step, p.Time = step, now
}

// at is the last heartbeat. A worker that has been silent for the time of three steps stands.
func (p *pace) at(now time.Time) Heartbeat {
	h := p.Heartbeat
	if silent := now.Sub(h.Time); silent > paceSilence && silent.Seconds()*h.PerSecond > 3 {
		h.PerSecond = 0
	}
	return h
}
