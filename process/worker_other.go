//go:build !linux

package process

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
)

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

func (w *worker) hasEnded() bool {
	w.system.mu.Lock()
	defer w.system.mu.Unlock()
	return w.system.end != nil
}

func (w *worker) killAll()         {}
func (w *worker) release(g *Group) { g.sup.forget(w.pid) }

// kernelState knows nothing here.
func kernelState(int) (state byte, where string) { return 0, "not known on " + runtime.GOOS }
