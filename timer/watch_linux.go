package timer

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A watcher tells when processes end. All pidfds are in one epoll set, which is in
// the runtime's poller: one goroutine waits for any number of processes.
type watcher struct {
	died func(pid int, id int32)

	mu    sync.Mutex // guards epoll
	epoll *os.File   // nil before open and after close
	conn  syscall.RawConn
}

func (w *watcher) open(died func(pid int, id int32)) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch processes: %w", err)
	}
	_ = unix.SetNonblock(fd, true)
	file := os.NewFile(uintptr(fd), "epoll of timed processes")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return fmt.Errorf("watch processes: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.died, w.epoll, w.conn = died, file, conn
	return nil
}

// add watches a process until its handle is closed.
func (w *watcher) add(h *handle) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoll == nil || h.fd < 0 {
		return
	}
	_ = w.conn.Control(func(fd uintptr) {
		_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, h.fd,
			&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(h.pid), Pad: h.id})
	})
}

// run reports ends until close.
func (w *watcher) run() {
	w.mu.Lock()
	conn := w.conn
	w.mu.Unlock()
	if conn == nil {
		return
	}
	var ready [64]unix.EpollEvent
	for {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(fd), ready[:], 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
		if err != nil || n <= 0 {
			return
		}
		for _, r := range ready[:n] {
			w.died(int(r.Fd), r.Pad)
		}
	}
}

func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoll != nil {
		w.epoll.Close()
		w.epoll = nil
	}
}
