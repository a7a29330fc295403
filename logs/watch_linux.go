package logs

import (
	"encoding/binary"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const ioctlGetTermios = unix.TCGETS

// pollInterval is how often a file is looked at where inotify cannot be had.
const pollInterval = 20 * time.Millisecond

// A watcher tells followers that their files have grown. All share one inotify
// descriptor. A watch fires once and is armed again by its follower, so that a
// worker that writes all the time costs no events while the follower is busy.
type watcher struct {
	file *os.File // nil: polling

	mu      sync.Mutex // guards watches
	watches map[int32]*watch
	done    chan struct{}
}

type watch struct {
	w       *watcher
	path    string
	id      int32
	changed chan struct{} // has room for one
	timer   *time.Timer   // of polling
}

func newWatcher(logger *slog.Logger) *watcher {
	w := &watcher{watches: map[int32]*watch{}, done: make(chan struct{})}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		logger.Warn("no inotify; looking at log files at intervals instead", "error", err, "interval", pollInterval)
		close(w.done)
		return w
	}
	w.file = os.NewFile(uintptr(fd), "inotify")
	go w.read()
	return w
}

func (w *watcher) close() {
	if w.file != nil {
		w.file.Close()
	}
	<-w.done
}

// read hands events to the followers until the descriptor is closed.
func (w *watcher) read() {
	defer close(w.done)
	var buf [64 * (unix.SizeofInotifyEvent + unix.NAME_MAX + 1)]byte
	for {
		n, err := w.file.Read(buf[:])
		if err != nil {
			return
		}
		for p := buf[:n]; len(p) >= unix.SizeofInotifyEvent; {
			id := int32(binary.NativeEndian.Uint32(p))
			mask := binary.NativeEndian.Uint32(p[4:])
			length := binary.NativeEndian.Uint32(p[12:])
			p = p[min(len(p), unix.SizeofInotifyEvent+int(length)):]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				w.wakeAll()
			} else if mask&unix.IN_MODIFY != 0 {
				w.wake(id)
			}
		}
	}
}

func (w *watcher) wake(id int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if watch := w.watches[id]; watch != nil {
		watch.fire()
	}
}

func (w *watcher) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watch := range w.watches {
		watch.fire()
	}
}

func (x *watch) fire() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

func (w *watcher) add(path string) *watch {
	return &watch{w: w, path: path, id: -1, changed: make(chan struct{}, 1)}
}

// arm makes changed ready at the next write to the file.
func (x *watch) arm() {
	select {
	case <-x.changed:
	default:
	}
	w := x.w
	if w.file != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		conn, err := w.file.SyscallConn()
		if err == nil {
			id := -1
			cerr := conn.Control(func(fd uintptr) {
				id, err = unix.InotifyAddWatch(int(fd), x.path, unix.IN_MODIFY|unix.IN_ONESHOT)
			})
			if err == nil && cerr == nil {
				if int32(id) != x.id {
					delete(w.watches, x.id)
					x.id = int32(id)
					w.watches[x.id] = x
				}
				return
			}
		}
	}
	if x.timer != nil {
		x.timer.Stop()
	}
	x.timer = time.AfterFunc(pollInterval, x.fire)
}

func (x *watch) remove() {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	delete(x.w.watches, x.id)
	if x.timer != nil {
		x.timer.Stop()
	}
}

func noSpace(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Bavail == 0 && fs.Blocks > 0
}
