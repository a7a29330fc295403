package logs

import (
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/muster-run/muster/internal/files/inotify"
)

// A watched is a file whose reader waits for its changes. Only that reader's goroutine
// touches it, but for fired, which the watcher sets.
type watched struct {
	src    source
	fired  atomic.Bool   // the file has changed since it was armed
	wake   chan struct{} // sent to, if there is room, after fired was set
	armed  bool          // the next change sets fired; the file need not be looked at before
	failed bool          // it cannot be read, and the log has said so
}

// fail says once why the file is not followed.
func (f *watched) fail(log *slog.Logger, what string, localRank int, err error) {
	if !f.failed {
		f.failed = true
		log.Warn(what, "local_rank", localRank, "file", f.src.path, "error", err)
	}
}

// A watcher tells readers that their files have changed. A file fires once and
// is armed again by its reader when that has nothing left to read, so that a
// worker that writes all the time costs no events.
type watcher struct {
	log     *slog.Logger
	inotify *inotify.Watcher // nil: files are polled
	told    sync.Once        // the log has said that files are polled
	wg      sync.WaitGroup

	mu    sync.Mutex           // guards the rest
	armed map[int32][]*watched // by ID; readers of one file share it
}

// newWatcher starts a watcher. Without inotify, files are polled.
func newWatcher(log *slog.Logger) *watcher {
	w := &watcher{log: log, armed: make(map[int32][]*watched)}
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

// close ends the watcher. Files that are armed later are polled.
func (w *watcher) close() {
	if w.inotify != nil {
		w.inotify.Close()
	}
	w.wg.Wait()
}

// arm makes the file's next change fire, unless that is so already; that of a file which is
// not there yet is the next one in its directory. It sets polling where the system cannot
// tell, and returns true when the file may have changed before.
func (w *watcher) arm(f *watched, polling *bool) (again bool) {
	if f.failed || f.armed && !f.fired.Load() {
		return false
	}
	f.fired.Store(false)
	if f.src.live == nil {
		f.armed = w.add(f, filepath.Dir(f.src.path), inotify.Create|inotify.MovedTo|inotify.OnlyDir)
	} else {
		// Through the descriptor, since the path may name another file by now.
		link := "/proc/self/fd/" + strconv.Itoa(int(f.src.live.Fd()))
		f.armed = w.add(f, link, inotify.Modify) || w.add(f, f.src.path, inotify.Modify)
	}
	*polling = *polling || !f.armed
	again = f.src.changed() // once it is armed, or a change in between would go unseen
	f.armed = f.armed && !again
	return again
}

func (w *watcher) add(f *watched, path string, mask inotify.Mask) bool {
	if w.inotify == nil {
		return false
	}
	w.mu.Lock() // held across the call: the event may come before it returns
	defer w.mu.Unlock()
	id, err := w.inotify.Add(path, mask|inotify.Oneshot)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrClosed) {
			w.polling(err)
		}
		return false
	}
	if !slices.Contains(w.armed[id], f) {
		w.armed[id] = append(w.armed[id], f)
	}
	return true
}

// changed fires the readers of a file, or all of them if events were lost.
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
	for _, f := range w.armed[id] {
		f.fired.Store(true)
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	delete(w.armed, id)
}
