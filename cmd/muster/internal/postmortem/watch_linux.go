package postmortem

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/jobfile"
)

// A dirWatcher tells of changes in directories, through one inotify descriptor.
// Only its reader is a goroutine of its own.
type dirWatcher struct {
	file  *os.File // nil: look at intervals
	far   bool     // others may write unseen: look at intervals, too
	fd    int
	dirs  map[string]int // watch descriptors
	dirty bool           // something may be new

	root  string        // the run's directory
	news  atomic.Bool   // there are new names, or events of the job
	gone  atomic.Bool   // somebody has closed the job's file
	event chan struct{} // has room for one
	done  chan struct{} // closed when read has returned
}

func newDirWatcher(dir string, log *slog.Logger) *dirWatcher {
	w := &dirWatcher{dirs: map[string]int{}, event: make(chan struct{}, 1), done: make(chan struct{}), dirty: true, far: shared(dir), root: dir}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		log.Warn("no inotify: looking at log files at intervals", "error", err, "interval", pollInterval)
		close(w.done)
		return w
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "inotify")
	go w.read()
	return w
}

// shared says whether a directory's file system is one that other hosts write to:
// the kernel here is not told of that.
// Source: magic.h of Linux, and statfs(2).
func shared(dir string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false
	}
	const lustre, gpfs, beegfs = 0x0bd00bd0, 0x47504653, 0x19830326
	switch uint32(fs.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.AFS_SUPER_MAGIC,
		unix.CEPH_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.OCFS2_SUPER_MAGIC, lustre, gpfs, beegfs:
		return true
	}
	return false
}

// close ends the watcher.
func (w *dirWatcher) close() {
	if w.file != nil {
		w.file.Close()
	}
	<-w.done
}

// add watches a directory. It returns true if it was not watched before.
func (w *dirWatcher) add(dir string) bool {
	if _, ok := w.dirs[dir]; ok || w.file == nil {
		return false
	}
	mask := uint32(unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW)
	if dir == w.root {
		mask |= unix.IN_CLOSE_WRITE // as the agent's end does with its file
	}
	id, err := unix.InotifyAddWatch(w.fd, dir, mask)
	if err != nil {
		return false
	}
	w.dirs[dir] = id
	w.dirty = true
	return true
}

// removeBelow ends the watch of a directory and of those in it.
func (w *dirWatcher) removeBelow(dir string) {
	for path, id := range w.dirs {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(id)) // it may be gone
			delete(w.dirs, path)
		}
	}
}

// take says whether something may be new since it was asked last.
func (w *dirWatcher) take() bool {
	dirty := w.news.Swap(false) || w.dirty || w.file == nil || w.far
	w.dirty = false
	return dirty
}

// closed says whether somebody, who may be the agent, has closed the job's file since
// it was asked last.
func (w *dirWatcher) closed() bool { return w.gone.Swap(false) }

// wait waits for a change, then lets more come together.
func (w *dirWatcher) wait(ctx context.Context) {
	var tick <-chan time.Time
	if w.file == nil || w.far {
		timer := time.NewTimer(pollInterval)
		defer timer.Stop()
		tick = timer.C
	}
	select {
	case <-w.event:
	case <-tick:
		return
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(gap)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// read hands on events until the descriptor is closed.
func (w *dirWatcher) read() {
	defer close(w.done)
	buf := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		for p := buf[:n]; len(p) >= unix.SizeofInotifyEvent; {
			mask := binary.NativeEndian.Uint32(p[4:])
			length := min(len(p), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(p[12:])))
			name := strings.TrimRight(string(p[unix.SizeofInotifyEvent:length]), "\x00")
			p = p[length:]
			if mask&unix.IN_CLOSE_WRITE != 0 && name == jobfile.Name {
				w.gone.Store(true)
			}
			if mask&unix.IN_MODIFY == 0 || !strings.HasSuffix(name, ".log") {
				w.news.Store(true)
			}
		}
		select {
		case w.event <- struct{}{}:
		default:
		}
	}
}
