package health

import (
	"context"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/sleep"
)

// A pacer lets requests through at a steady rate: a flood then waits in its own
// connections instead of taking CPU time from the job.
type pacer struct {
	every time.Duration // between two requests
	burst int           // so many may come at once
	limit time.Duration // nobody waits longer

	mu   sync.Mutex // guards next
	next time.Time  // when the next request may go on
}

// wait returns when the request may go on; false if that is too far away, or ctx
// has ended.
func (p *pacer) wait(ctx context.Context) bool {
	d, ok := p.reserve(time.Now())
	return ok && (d <= 0 || sleep.For(ctx, d) == nil)
}

// reserve returns how long the next request has to wait.
func (p *pacer) reserve(now time.Time) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if earliest := now.Add(-time.Duration(p.burst) * p.every); p.next.Before(earliest) {
		p.next = earliest
	}
	d := p.next.Sub(now) + p.every
	if d > p.limit {
		return 0, false
	}
	p.next = p.next.Add(p.every)
	return d, true
}
