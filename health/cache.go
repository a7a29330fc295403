package health

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// A cache holds what a Source said last. However many ask for it, fetch is called
// by one of them at a time, and only when the value is older than fresh. It runs in
// a goroutine of its own: whoever has waited long enough takes the value before.
type cache[T any] struct {
	fetch  func(context.Context) (T, bool)
	fresh  time.Duration
	log    *slog.Logger
	life   context.Context // of the server
	flight sync.WaitGroup

	mu    sync.Mutex // guards the rest
	tried time.Time  // when fetch last returned
	at    time.Time  // when it last returned something
	value T
	done  chan struct{} // of the fetch under way; nil if none is
}

// get returns the value and when it was fetched, waiting at most wait for a fresh
// one. The time is zero while there is none.
func (c *cache[T]) get(ctx context.Context, wait time.Duration) (T, time.Time) {
	c.mu.Lock()
	if c.done == nil {
		if !c.tried.IsZero() && time.Since(c.tried) < c.fresh || c.life.Err() != nil {
			defer c.mu.Unlock()
			return c.value, c.at
		}
		c.done = make(chan struct{})
		c.flight.Go(c.refresh)
	}
	done := c.done
	c.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.at
}

// refresh fetches a value.
func (c *cache[T]) refresh() {
	value, ok := c.try()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = time.Now()
	if ok {
		c.value, c.at = value, c.tried
	}
	close(c.done)
	c.done = nil
}

// try calls fetch. A Source that panics would end a job since somebody looked at
// it; it counts as one that has nothing to say.
func (c *cache[T]) try() (value T, ok bool) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("internal error: the state of the job cannot be shown", "panic", p, "stack", string(debug.Stack()))
			ok = false
		}
	}()
	return c.fetch(c.life)
}
