// Package sleep waits for a time or the end of a context.
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
