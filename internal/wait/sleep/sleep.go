// Package sleep waits for a time, or a channel's end, no longer than for the end of a context.
package sleep

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends. It returns ctx's cause if that has ended.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// Until waits until done is closed. It returns ctx's cause if that ends before, and nil where both have ended.
func Until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
	case <-ctx.Done():
	}
	select {
	case <-done:
		return nil
	default:
		return context.Cause(ctx)
	}
}
