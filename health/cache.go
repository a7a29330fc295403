package health

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// A cache holds the last value that a Source has returned. fetch runs once at a time, however many callers want
// the value, and only if it is older than fresh. It runs in a goroutine of its own, so that a caller that has waited
// long enough can take the last value instead.
type cache[T any] struct {
	what   string // the name of the value, for messages
	fetch  func(context.Context) (T, error)
	fresh  time.Duration
	log    *slog.Logger
	life   context.Context // ends with the server, and with it a fetch
	flight sync.WaitGroup

	mu     sync.Mutex // guards the rest
	tried  time.Time  // when fetch last returned, a value or an error
	at     time.Time  // when it last returned a value
	failed bool       // the last fetch returned an error
	value  T
	done   chan struct{} // closed when the fetch under way ends; nil if none is
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

	select {
	case <-done:
	case <-time.After(wait):
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.at
}

// refresh fetches a value.
func (c *cache[T]) refresh() {
	value, err := c.try()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = time.Now()
	if err == nil {
		c.value, c.at = value, c.tried
	} else if !c.failed && c.life.Err() == nil {
		c.log.Warn(c.what+" cannot be shown; reported once", "error", err)
	}
	c.failed = err != nil
	close(c.done)
	c.done = nil
}

// try calls fetch. If the Source panics, that is an error: nobody should end a job by looking
// at it.
func (c *cache[T]) try() (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v\n%s", p, debug.Stack())
		}
	}()
	return c.fetch(c.life)
}
