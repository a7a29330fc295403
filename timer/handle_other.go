//go:build !linux

package timer

import (
	"errors"
	"fmt"
	"syscall"
)

const maxPidfds = 0

// A handle names a process. Without pidfds and start times it is only its number.
type handle struct {
	pid int
}

func openHandle(pid int, _ bool) (*handle, error) {
	h := &handle{pid: pid}
	if !h.alive() {
		return nil, ErrNoProcess
	}
	return h, nil
}

func (h *handle) alive() bool { return !errors.Is(syscall.Kill(h.pid, 0), syscall.ESRCH) }

func (h *handle) send(sig syscall.Signal) error {
	err := syscall.Kill(h.pid, sig)
	if err == nil || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return fmt.Errorf("send signal %d to process %d: %w", int(sig), h.pid, err)
}

func (h *handle) close() {}

func (h *handle) watchable() bool { return false }

// A watcher cannot be had on this system.
type watcher struct{}

func newWatcher() (*watcher, error)           { return nil, errors.ErrUnsupported }
func (*watcher) add(*process)                 {}
func (*watcher) run(func(pid int, id uint32)) {}
func (*watcher) close()                       {}

func growPipe(int) {}
