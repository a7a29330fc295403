package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A watcher tells a group of the ends of its processes, in their order. All pidfds
// of a group are in one epoll set, and that is in the runtime's poller: one
// goroutine waits for any number of processes and no thread does. One goroutine
// per process would wake up in any order when several end at once.
//
// Where the kernel has no pidfds (before Linux 5.4, and some sandboxes) a
// goroutine, and a thread with it, waits for each worker.
type watcher struct {
	log    *slog.Logger
	events chan<- event
	quit   chan struct{}
	wg     sync.WaitGroup
	epoll  *os.File // nil without pidfds

	mu      sync.Mutex // guards the rest
	watched map[int32]event
	next    int32
}

func newWatcher(s *Supervisor, events chan<- event) (*watcher, error) {
	wt := &watcher{log: s.log, events: events, quit: make(chan struct{}), watched: map[int32]event{}}
	if s.system.noPidfd {
		return wt, nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	_ = unix.SetNonblock(fd, true)
	wt.epoll = os.NewFile(uintptr(fd), "epoll of workers")
	conn, err := wt.epoll.SyscallConn()
	if err != nil {
		wt.epoll.Close()
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	wt.wg.Go(func() { wt.loop(conn) })
	return wt, nil
}

// loop sends an event for each pidfd that becomes readable, until the set is
// closed. The kernel keeps them in the order of the processes' ends.
func (wt *watcher) loop(conn syscall.RawConn) {
	var ready [64]unix.EpollEvent
	for {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(fd), ready[:], 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil || n <= 0 {
			return
		}
		for _, r := range ready[:n] {
			at := time.Now()
			wt.mu.Lock()
			e := wt.watched[r.Fd]
			delete(wt.watched, r.Fd)
			wt.mu.Unlock()
			if e.w == nil {
				continue
			}
			e.at = at
			if e.l == nil {
				var ok bool
				if e.end, ok = e.w.peek(); !ok { // who traces it hears of its end first
					wt.await(e.w)
					continue
				}
			}
			if !wt.send(e) {
				return
			}
		}
	}
}

func (wt *watcher) send(e event) bool {
	select {
	case wt.events <- e:
		return true
	case <-wt.quit:
		return false
	}
}

// worker watches a worker's leader.
func (wt *watcher) worker(w *worker) {
	if w.system.pidfd < 0 || wt.add(w.system.pidfd, event{w: w}) != nil {
		wt.await(w)
	}
}

// unknownEnd is the exit code of a worker of which the system does not say how it
// ended. It must not pass for success.
const unknownEnd = 255

// await waits for the end of a worker's leader on a thread.
func (wt *watcher) await(w *worker) {
	go func() {
		_, err := waitid(unix.P_PID, w.pid, unix.WEXITED|unix.WNOWAIT, nil)
		e := event{w: w, at: time.Now()}
		var ok bool
		if e.end, ok = w.peek(); !ok {
			wt.log.Error("the system does not say how a worker ended; it counts as failed", "local_rank", w.rank, "pid", w.pid, "error", err)
			e.end.code = unknownEnd
			if err != unix.ECHILD { // else it is gone, and its number may be another's
				_ = syscall.Kill(-w.pid, syscall.SIGKILL)
			}
		}
		wt.send(e)
	}()
}

// leftover watches something that a worker left behind, if that can be.
func (wt *watcher) leftover(w *worker, l *leftover) bool {
	if l.pidfd >= 0 && wt.add(l.pidfd, event{w: w, l: l}) == nil {
		l.watched = true
	}
	return l.watched
}

func (wt *watcher) add(fd int, e event) error {
	if wt.epoll == nil {
		return errors.ErrUnsupported
	}
	wt.mu.Lock()
	defer wt.mu.Unlock()
	wt.next++
	wt.watched[wt.next] = e
	conn, err := wt.epoll.SyscallConn()
	if err == nil {
		cerr := conn.Control(func(epfd uintptr) {
			err = unix.EpollCtl(int(epfd), unix.EPOLL_CTL_ADD, fd,
				&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: wt.next})
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		delete(wt.watched, wt.next)
	}
	return err
}

// close ends the watching. A thread that waits for a worker stuck in the kernel
// stays with it.
func (wt *watcher) close() {
	close(wt.quit)
	if wt.epoll != nil {
		wt.epoll.Close()
		wt.wg.Wait()
	}
}

// A siginfo is what waitid says about a child.
type siginfo struct {
	signo, errno, code int32
	_                  [is64bit]int32
	pid                int32
	uid                uint32
	status             int32
	_                  [128 - (6+is64bit)*4]byte
}

const is64bit = ^uint(0) >> 63

// waitid calls the system's. A zero pid in the answer: it has not ended yet.
func waitid(kind, id, options int, usage *unix.Rusage) (siginfo, error) {
	for {
		var info siginfo
		_, _, errno := syscall.Syscall6(unix.SYS_WAITID, uintptr(kind), uintptr(id),
			uintptr(unsafe.Pointer(&info)), uintptr(options), uintptr(unsafe.Pointer(usage)), 0)
		switch errno {
		case syscall.EINTR:
		case 0:
			return info, nil
		default:
			return siginfo{}, errno
		}
	}
}
