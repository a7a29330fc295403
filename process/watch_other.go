//go:build !linux

package process

import (
	"syscall"
	"time"
)

// A watcher tells a group of the ends of its workers.
type watcher struct {
	events chan<- event
	quit   chan struct{}
}

func newWatcher(_ *Supervisor, events chan<- event) (*watcher, error) {
	return &watcher{events, make(chan struct{})}, nil
}

func (wt *watcher) worker(w *worker) {
	go func() {
		var status syscall.WaitStatus
		var usage syscall.Rusage
		var err error
		for {
			if _, err = syscall.Wait4(w.pid, &status, 0, &usage); err != syscall.EINTR {
				break
			}
		}
		e := ending{code: 1}
		if err == nil {
			e = ending{code: status.ExitStatus(), core: status.CoreDump(), maxRSS: int64(usage.Maxrss),
				user: time.Duration(usage.Utime.Nano()), system: time.Duration(usage.Stime.Nano())}
			if status.Signaled() {
				e.code = -int(status.Signal())
			}
		}
		w.system.mu.Lock()
		w.system.end = &e
		w.system.mu.Unlock()
		select {
		case wt.events <- event{w: w, at: time.Now(), end: e}:
		case <-wt.quit:
		}
	}()
}

func (wt *watcher) leftover(*worker, *leftover) bool { return false }

func (wt *watcher) close() { close(wt.quit) }
