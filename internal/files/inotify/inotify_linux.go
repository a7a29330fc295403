package inotify

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Watcher is one inotify instance, of which a user may have 128 by default. It
// waits in the runtime's poller. Its methods may be called concurrently, except
// that only one Run continues at a time.
type Watcher struct {
	file *os.File
	conn syscall.RawConn
}

// New returns a Watcher of nothing. The caller closes it.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "inotify")}
	w.conn, err = w.file.SyscallConn()
	return w, err
}

// Add watches a path. A second Add of the same file returns the same ID, and
// replaces the mask. Run may report an event before Add has returned. After Close
// the error is os.ErrClosed.
func (w *Watcher) Add(path string, mask Mask) (id int32, err error) {
	if w.conn.Control(func(fd uintptr) {
		var wd int
		wd, err = unix.InotifyAddWatch(int(fd), path, uint32(mask))
		id = int32(wd)
	}) != nil {
		return 0, os.ErrClosed
	}
	return id, err
}

// Run calls changed with each event until Close is called.
func (w *Watcher) Run(changed func(Event)) {
	buf := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		for p := buf[:n]; len(p) >= unix.SizeofInotifyEvent; {
			end := min(len(p), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(p[12:])))
			changed(Event{ID: int32(binary.NativeEndian.Uint32(p)), Mask: Mask(binary.NativeEndian.Uint32(p[4:]))})
			p = p[end:]
		}
	}
}

// Close ends Run.
func (w *Watcher) Close() { w.file.Close() }

// Remote reports whether a directory is on a file system that other hosts write to,
// of whose changes and locks this kernel may not know.
// Source: linux/magic.h and statfs(2).
func Remote(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return false
	}
	const lustre, gpfs, beegfs = 0x0bd00bd0, 0x47504653, 0x19830326
	switch uint32(fs.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
		unix.AFS_SUPER_MAGIC, unix.CODA_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC,
		unix.V9FS_MAGIC, unix.OCFS2_SUPER_MAGIC, lustre, gpfs, beegfs:
		return true
	}
	return false
}
