package postmortem

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/inotify"
	"github.com/muster-run/muster/internal/jobfile"
	"github.com/muster-run/muster/internal/sleep"
)

// A dirWatcher tells of changes in directories. Its methods are for one goroutine;
// another one of its own receives the events.
type dirWatcher struct {
	root    string           // the run's directory
	inotify *inotify.Watcher // nil: look at intervals
	remote  bool             // other hosts may write unseen: look at intervals, too
	ids     map[string]int32 // of the watched directories
	added   bool             // a directory was, and what is in it may be new
	wg      sync.WaitGroup

	names  atomic.Bool   // there are new names, or events of the job
	closed atomic.Bool   // somebody, who may be the agent, has closed the job's file
	event  chan struct{} // has room for one
}

func newDirWatcher(dir string, log *slog.Logger) *dirWatcher {
	w := &dirWatcher{root: dir, remote: inotify.Remote(dir), ids: map[string]int32{}, added: true,
		event: make(chan struct{}, 1)}
	notify, err := inotify.New()
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			log.Warn("no inotify: looking at log files at intervals", "error", err, "interval", pollInterval)
		}
		return w
	}
	w.inotify = notify
	w.wg.Go(func() { notify.Run(w.changed) })
	return w
}

// close ends the watcher.
func (w *dirWatcher) close() {
	if w.inotify != nil {
		w.inotify.Close()
	}
	w.wg.Wait()
}

// add watches a directory. It returns true if it was not watched before.
func (w *dirWatcher) add(dir string) bool {
	if _, ok := w.ids[dir]; ok || w.inotify == nil {
		return false
	}
	mask := inotify.Modify | inotify.Create | inotify.MovedTo | inotify.OnlyDir | inotify.DontFollow
	if dir == w.root {
		mask |= inotify.CloseWrite // as the agent's end does with its file
	}
	id, err := w.inotify.Add(dir, mask)
	if err != nil {
		return false
	}
	w.ids[dir], w.added = id, true
	return true
}

// removeBelow ends the watch of a directory and of those in it.
func (w *dirWatcher) removeBelow(dir string) {
	for path, id := range w.ids {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			w.inotify.Remove(id)
			delete(w.ids, path)
		}
	}
}

// take reports whether something may be new since it was asked last.
func (w *dirWatcher) take() bool {
	fresh := w.names.Swap(false) || w.added || w.inotify == nil || w.remote
	w.added = false
	return fresh
}

// wait waits for a change, then lets more come together.
func (w *dirWatcher) wait(ctx context.Context) {
	var tick <-chan time.Time
	if w.inotify == nil || w.remote {
		timer := time.NewTimer(pollInterval)
		defer timer.Stop()
		tick = timer.C
	}
	select {
	case <-w.event:
		_ = sleep.For(ctx, gap)
	case <-tick:
	case <-ctx.Done():
	}
}

// changed notes an event.
func (w *dirWatcher) changed(e inotify.Event) {
	if e.Mask&inotify.CloseWrite != 0 && e.Name == jobfile.Name {
		w.closed.Store(true)
	}
	if e.Mask&inotify.Modify == 0 || !strings.HasSuffix(e.Name, ".log") {
		w.names.Store(true)
	}
	select {
	case w.event <- struct{}{}:
	default:
	}
}
