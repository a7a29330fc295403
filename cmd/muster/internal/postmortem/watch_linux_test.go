package postmortem

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Where the kernel tells of nothing, a watcher comes back by itself, and takes
// everything for new.
func TestWatchBlind(t *testing.T) {
	for _, w := range []*dirWatcher{
		{remote: true, event: make(chan struct{})},
		{event: make(chan struct{})}, // no inotify
	} {
		w.wait(context.Background())
		if first, second := w.take(), w.take(); !first || !second {
			t.Errorf("nothing is new where nobody can tell: remote %v", w.remote)
		}
	}
}

// A local directory is not looked at for nothing.
func TestWatchLocal(t *testing.T) {
	dir := t.TempDir()
	w := newDirWatcher("/proc", slog.Default())
	defer w.close()
	if w.inotify == nil {
		t.Skip("no inotify")
	}
	if !w.add(dir) || w.add(dir) || w.add(filepath.Join(dir, "none")) {
		t.Error("add does not tell what was added")
	}
	if !w.take() || w.take() {
		t.Error("what was added is not new once")
	}
	if err := os.WriteFile(filepath.Join(dir, "stdout.log"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.wait(context.Background())
	if !w.take() || w.take() {
		t.Error("a new file is not new once")
	}
	w.removeBelow(dir)
	if len(w.ids) != 0 {
		t.Errorf("%v is still watched", w.ids)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w.wait(ctx)
}
