//go:build !linux

package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/procfs"
)

// On systems other than Linux a goroutine, and a thread with it, waits for each
// worker, and what a worker leaves behind is ended if it stayed in the worker's
// process group. There is no guard and there are no parent-death signals: workers
// outlive a launcher that is killed.

type system struct{}

type guard struct{}

func (*guard) ensure()        {}
func (*guard) tell(...string) {}

func (s *Supervisor) open(cfg SupervisorConfig) error {
	if cfg.Guard {
		s.log.Info("no guard on this system: if this process is killed, its workers stay", "system", runtime.GOOS)
	}
	return nil
}

func (s *Supervisor) shut() error { return nil }

// GuardMain does nothing on this system, which has no guard.
func GuardMain() {}

func selfPath() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

type oomBase struct{}

func (g *Group) oomEvidence(*worker) string { return "" }

func (g *Group) prepare([]plan) {}

type workerSystem struct {
	mu  sync.Mutex
	end *ending // once it has been reaped
}

func (g *Group) spawn(p *plan) (err error) {
	if len(g.cfg.CPUs[p.rank]) > 0 {
		return fmt.Errorf("binding to CPUs is not possible on %s", runtime.GOOS)
	}
	p.pid, err = syscall.ForkExec(p.path, p.argv, g.attr(p))
	return err
}

// A watcher tells a group of the ends of its workers.
type watcher struct {
	events chan<- event
	quit   chan struct{}
}

func newWatcher(_ *Supervisor, events chan<- event) (*watcher, error) {
	return &watcher{events, make(chan struct{})}, nil
}

func (wt *watcher) worker(w *worker) error {
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
	return nil
}

func (wt *watcher) leftover(*worker, *leftover) bool { return false }

func (wt *watcher) close() { close(wt.quit) }

func (w *worker) hasEnded() bool {
	w.system.mu.Lock()
	defer w.system.mu.Unlock()
	return w.system.end != nil
}

func (w *worker) killAll()         {}
func (w *worker) release(g *Group) { g.sup.forget(w.pid) }

// leftovers stands for the whole process group with one entry. The group's number
// is reserved as long as a process is in it.
func (g *Group) leftovers(w *worker) []procfs.Stat {
	if err := syscall.Kill(-w.pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return nil
	}
	return []procfs.Stat{{PID: w.pid, Group: w.pid, Session: w.pid}}
}

type leftover struct {
	stat    procfs.Stat
	watched bool
	told    syscall.Signal
}

func (s *Supervisor) openLeftover(p procfs.Stat) *leftover { return &leftover{stat: p} }

func (l *leftover) close()                          {}
func (l *leftover) reap()                           {}
func (l *leftover) signal(sig syscall.Signal) error { return syscall.Kill(-l.stat.Group, sig) }

// kernelState knows nothing here.
func kernelState(int) (state byte, where string) { return 0, "not known on " + runtime.GOOS }
