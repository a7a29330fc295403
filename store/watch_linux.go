package store

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// remoteInterval is how often a file on a network file system is looked at.
const remoteInterval = 100 * time.Millisecond

// newWatcher returns what tells of changes to the file at the path.
func newWatcher(path string) (watcher, error) {
	if isRemote(path) {
		return newPoller(remoteInterval), nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOSYS) {
		return newPoller(remoteInterval), nil // the user's inotify instances are used up
	}
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &inotify{path: path, fd: fd, file: os.NewFile(uintptr(fd), "inotify")}, nil
}

// isRemote reports whether other hosts may change files of this file system,
// which inotify does not see.
func isRemote(path string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return true
	}
	switch uint32(fs.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC,
		unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC,
		unix.CODA_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC,
		0x0BD00BD0, // Lustre
		0x47504653, // GPFS
		0x19830326: // BeeGFS
		return true
	}
	return false
}

// An inotify tells of changes as they happen.
type inotify struct {
	path string
	fd   int
	file *os.File
}

// add watches the file that is at the path now, if it does not already.
func (w *inotify) add() error {
	const events = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	_, err := unix.InotifyAddWatch(w.fd, w.path, events)
	if errors.Is(err, unix.ENOENT) {
		return nil // the reader will find out
	}
	return os.NewSyscallError("inotify_add_watch", err)
}

func (w *inotify) next(waiting func() bool) bool {
	var events [4096]byte
	for {
		if _, err := w.file.Read(events[:]); err != nil {
			return false
		}
		if waiting() {
			_ = w.add() // it may be another file by now
			return true
		}
	}
}

func (w *inotify) close() { w.file.Close() }
