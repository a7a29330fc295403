package process

import (
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/pidwatch"
	"github.com/muster-run/muster/internal/host/procfs"
)

// A watcher tells a group of the ends of its processes, in their order. events has no room: run takes each
// event, until it has ended and closes quit. So no end is lost, and nobody waits to send one for ever.
//
// Where the kernel has no pidfds (before Linux 5.4, and some sandboxes) a
// goroutine, and a thread with it, waits for each worker.
type watcher struct {
	log    *slog.Logger
	events chan<- event
	quit   chan struct{}
	wg     sync.WaitGroup
	set    *pidwatch.Set // nil without pidfds

	mu      sync.Mutex       // guards the rest
	watched map[uint64]event // what to send at the end of a process, by its key in set
	next    uint64           // the last key
}

func newWatcher(s *Supervisor, events chan<- event) (*watcher, error) {
	wt := &watcher{log: s.log, events: events, quit: make(chan struct{}), watched: map[uint64]event{}}
	if !s.system.pidfds() {
		return wt, nil
	}
	var err error
	if wt.set, err = pidwatch.New(); err != nil {
		return nil, err
	}
	wt.wg.Go(func() { wt.set.Run(wt.ended) })
	return wt, nil
}

// ended sends the event that waits for a pidfd. It returns false when nobody
// receives events any more.
func (wt *watcher) ended(key uint64) bool {
	at := time.Now()
	wt.mu.Lock()
	e := wt.watched[key]
	delete(wt.watched, key)
	wt.mu.Unlock()
	if e.w == nil {
		return true
	}
	e.at = at
	if e.l == nil {
		var ok bool
		if e.end, ok = e.w.peek(); !ok { // a tracer, such as gdb, is told of the end first
			wt.await(e.w)
			return true
		}
	}
	return wt.send(e)
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

// await waits for the end of a worker's leader in a goroutine, which takes a thread. Nothing
// waits for that: a worker that is stuck in the kernel keeps it.
func (wt *watcher) await(w *worker) {
	go func() {
		_, err := waitid(unix.P_PID, w.pid, unix.WEXITED|unix.WNOWAIT, nil)
		e := event{w: w, at: time.Now()}
		var ok bool
		if e.end, ok = w.peek(); !ok {
			wt.log.Error("the system does not say how a worker ended; it counts as failed", "local_rank", w.rank, "pid", w.pid,
				"error", err)
			e.end.code = unknownEnd
			if err != unix.ECHILD { // else it is gone, and its number may be another's
				_ = syscall.Kill(-w.pid, syscall.SIGKILL)
				awaitEnd(w.pid, leastKillWait) // until then what it has started is not an orphan
			}
		}
		wt.send(e)
	}()
}

// awaitEnd waits for the end of a process that was killed, as far as /proc tells it.
func awaitEnd(pid int, limit time.Duration) {
	for late := time.Now().Add(limit); time.Now().Before(late); time.Sleep(time.Millisecond) {
		if p, err := procfs.Read(pid); err != nil || !p.Alive() {
			return
		}
	}
}

// leftover watches something that a worker left behind, if that can be.
func (wt *watcher) leftover(w *worker, l *leftover) bool {
	if l.pidfd >= 0 && wt.add(l.pidfd, event{w: w, l: l}) == nil {
		l.watched = true
	}
	return l.watched
}

func (wt *watcher) add(fd int, e event) error {
	if wt.set == nil {
		return errors.ErrUnsupported
	}
	wt.mu.Lock()
	defer wt.mu.Unlock()
	wt.next++
	wt.watched[wt.next] = e
	err := wt.set.Add(fd, wt.next)
	if err != nil {
		delete(wt.watched, wt.next)
	}
	return err
}

// close ends the watching, except for goroutines of await.
func (wt *watcher) close() {
	close(wt.quit)
	if wt.set != nil {
		wt.set.Close()
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
