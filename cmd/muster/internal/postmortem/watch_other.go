//go:build !linux

package postmortem

import (
	"context"
	"log/slog"
	"time"
)

// A dirWatcher cannot tell of changes on this system, so directories are looked at
// in intervals.
type dirWatcher struct{}

func newDirWatcher(string, *slog.Logger) *dirWatcher { return &dirWatcher{} }

func (*dirWatcher) close() {}

func (*dirWatcher) add(string) bool { return false }

func (*dirWatcher) removeBelow(string) {}

func (*dirWatcher) take() bool { return true }

func (*dirWatcher) closed() bool { return false }

// shared says whether other hosts' locks may be out of sight, which is not known here.
func shared(string) bool { return true }

func (*dirWatcher) wait(ctx context.Context) {
	timer := time.NewTimer(pollInterval + gap)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
