package logs

import (
	"encoding/binary"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A watcher tells followers that their files have changed, all through one
// inotify descriptor that waits in Go's poller. A watch fires once and is armed
// again by its follower when that has nothing left to read, so that a worker
// that writes all the time costs no events.
type watcher struct {
	log  *slog.Logger
	done chan struct{}

	mu    sync.Mutex // guards the rest
	file  *os.File   // nil without inotify, and once closed
	fd    int
	armed map[int32][]*watch // by watch descriptor; followers of one file share it
	told  bool               // the log has said that files are polled
}

// newWatcher starts a watcher. Without inotify, arm always fails.
func newWatcher(log *slog.Logger) *watcher {
	w := &watcher{log: log, done: make(chan struct{}), armed: make(map[int32][]*watch)}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		w.polling(err)
		close(w.done)
		return w
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "inotify")
	go w.read(w.file)
	return w
}

// polling says once that inotify does not work. The caller holds mu or is alone.
func (w *watcher) polling(err error) {
	if !w.told {
		w.told = true
		w.log.Warn("no inotify: looking at log files at intervals", "error", err, "interval", pollInterval)
	}
}

// close ends the watcher. Later calls of arm fail.
func (w *watcher) close() {
	w.mu.Lock()
	file := w.file
	w.file = nil
	w.mu.Unlock()
	if file != nil {
		file.Close()
	}
	<-w.done
}

// arm lets x fire at the next write to a file, or the next file that appears in
// a directory. It returns false where the system cannot tell.
func (w *watcher) arm(x *watch, path string, dir bool) bool {
	w.mu.Lock() // held across the call: the event may come before it returns
	defer w.mu.Unlock()
	if w.file == nil {
		return false
	}
	mask := uint32(unix.IN_MODIFY | unix.IN_ONESHOT)
	if dir {
		mask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_ONESHOT
	}
	id, err := unix.InotifyAddWatch(w.fd, path, mask)
	if err != nil {
		if err != unix.ENOENT {
			w.polling(err)
		}
		return false
	}
	if !slices.Contains(w.armed[int32(id)], x) {
		w.armed[int32(id)] = append(w.armed[int32(id)], x)
	}
	return true
}

// read hands on events until the descriptor is closed.
func (w *watcher) read(file *os.File) {
	defer close(w.done)
	buf := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := file.Read(buf)
		if err != nil {
			return
		}
		for p := buf[:n]; len(p) >= unix.SizeofInotifyEvent; {
			id := int32(binary.NativeEndian.Uint32(p))
			mask := binary.NativeEndian.Uint32(p[4:])
			name := binary.NativeEndian.Uint32(p[12:])
			p = p[min(len(p), unix.SizeofInotifyEvent+int(name)):]
			w.event(id, mask)
		}
	}
}

func (w *watcher) event(id int32, mask uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if mask&unix.IN_Q_OVERFLOW != 0 {
		for id, list := range w.armed {
			for _, x := range list {
				x.fire()
			}
			delete(w.armed, id)
		}
		return
	}
	for _, x := range w.armed[id] {
		x.fire()
	}
	delete(w.armed, id)
}

// descriptorPath returns a path that leads to an open file, wherever it was
// moved.
func descriptorPath(f *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
}
