//go:build !linux

package logs

import (
	"log/slog"
	"os"
)

// A watcher cannot tell of changes on this system, so files are polled.
type watcher struct{}

func newWatcher(*slog.Logger) *watcher { return &watcher{} }

func (*watcher) close() {}

func (*watcher) arm(*watch, string, bool) bool { return false }

func descriptorPath(f *os.File) string { return f.Name() }
