package agent

import "time"

// Rounds that end within quickRound, and for which no restart is counted, are a series: nothing
// else bounds them. From the third on the next round waits: for firstPause, then for twice as
// long each time, up to mostPause.
const (
	quickRound = 5 * time.Second
	firstPause = 100 * time.Millisecond
	mostPause  = 10 * time.Second
)

// A pace slows down rounds that end as soon as they begin.
type pace struct{ quick int }

// pause is how long to wait after a round that lasted for a time; counted says that it cost a restart.
func (p *pace) pause(lasted time.Duration, counted bool) time.Duration {
	if p.quick++; counted || lasted >= quickRound {
		p.quick = 0
	}
	if p.quick < 3 {
		return 0
	}
	return min(firstPause<<min(p.quick-3, 10), mostPause)
}
