package logs

import "time"

const (
	// A follower is woken up to burst times in a window; then it rests, and looks every rest
	// for as long as spell, or until it finds nothing new.
	burst  = 15
	window = 50 * time.Millisecond
	rest   = 100 * time.Millisecond
	spell  = time.Second
)

// A pace lets output come together where it arrives often: each wake-up takes CPU time from the
// workers that wrote it. A line after a pause, and all of up to 300 lines a second, do not wait.
type pace struct {
	begun time.Time // the window
	moves int       // in it
	until time.Time // the end of the spell
}

// moved says how long to rest after something was copied.
func (p *pace) moved(now time.Time) time.Duration {
	if now.Before(p.until) {
		return rest
	}
	if now.Sub(p.begun) > window {
		p.begun, p.moves = now, 0
	}
	if p.moves++; p.moves <= burst {
		return 0
	}
	p.begun, p.until = time.Time{}, now.Add(spell)
	return rest
}

// still says that nothing was new.
func (p *pace) still() { p.until = time.Time{} }
