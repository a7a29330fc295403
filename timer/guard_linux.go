package timer

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// growPipe makes room for a burst of requests. It is no matter if it fails.
func growPipe(fd int) { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) }

// nap sleeps for less than a runtime timer can.
func nap(d time.Duration) {
	at := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&at, nil)
}

// guard puts the FIFO back when it is removed, until ctx is done. The kernel tells
// it, unless this user has no inotify instance left.
func (f *FileServer) guard(ctx context.Context) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil || f.server.cfg.blind {
		unix.Close(fd)
		f.patrol(ctx)
		return
	}
	file := os.NewFile(uintptr(fd), "inotify of "+f.path)
	defer file.Close()
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	events := make([]byte, 4096)
	for ctx.Err() == nil {
		// The FIFO is watched, not its directory, where there may be much coming
		// and going. Removing it changes its number of links.
		_, err := unix.InotifyAddWatch(fd, f.path, unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_DELETE_SELF|unix.IN_DONT_FOLLOW)
		if err == nil && f.present() {
			if _, err = file.Read(events); err != nil {
				return
			}
			continue
		}
		if !f.restore(ctx) {
			return
		}
	}
}
