package logs

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/muster-run/muster/internal/inotify"
)

// A watch is one follower's wait for a change of its file.
type watch struct {
	fired atomic.Bool   // the file has changed since the watch was armed
	wake  chan struct{} // sent to, if there is room, after fired was set
}

func (w *watch) fire() {
	w.fired.Store(true)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// A watcher tells followers that their files have changed. A watch fires once and
// is armed again by its follower when that has nothing left to read, so that a
// worker that writes all the time costs no events.
type watcher struct {
	log     *slog.Logger
	inotify *inotify.Watcher // nil: files are polled
	told    sync.Once        // the log has said that files are polled
	wg      sync.WaitGroup

	mu    sync.Mutex         // guards the rest
	armed map[int32][]*watch // by ID; followers of one file share it
}

// newWatcher starts a watcher. Without inotify, arm always fails.
func newWatcher(log *slog.Logger) *watcher {
	w := &watcher{log: log, armed: make(map[int32][]*watch)}
	var err error
	if w.inotify, err = inotify.New(); err != nil {
		w.inotify = nil
		w.polling(err)
		return w
	}
	w.wg.Go(func() { w.inotify.Run(w.changed) })
	return w
}

// polling says once that inotify does not work where it should.
func (w *watcher) polling(err error) {
	if !errors.Is(err, errors.ErrUnsupported) {
		w.told.Do(func() {
			w.log.Warn("no inotify: looking at log files at intervals", "error", err, "interval", pollInterval)
		})
	}
}

// close ends the watcher. Later calls of arm fail.
func (w *watcher) close() {
	if w.inotify != nil {
		w.inotify.Close()
	}
	w.wg.Wait()
}

// arm lets x fire at the next write to a file, or the next file that appears in
// a directory. It returns false where the system cannot tell.
func (w *watcher) arm(x *watch, path string, dir bool) bool {
	if w.inotify == nil {
		return false
	}
	mask := inotify.Modify | inotify.Oneshot
	if dir {
		mask = inotify.Create | inotify.MovedTo | inotify.OnlyDir | inotify.Oneshot
	}
	w.mu.Lock() // held across the call: the event may come before it returns
	defer w.mu.Unlock()
	id, err := w.inotify.Add(path, mask)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrClosed) {
			w.polling(err)
		}
		return false
	}
	if !slices.Contains(w.armed[id], x) {
		w.armed[id] = append(w.armed[id], x)
	}
	return true
}

// changed fires the watches of a file, or all of them if events were lost.
func (w *watcher) changed(e inotify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Mask&inotify.Overflow == 0 {
		w.fire(e.ID)
		return
	}
	for id := range w.armed {
		w.fire(id)
	}
}

func (w *watcher) fire(id int32) {
	for _, x := range w.armed[id] {
		x.fire()
	}
	delete(w.armed, id)
}
