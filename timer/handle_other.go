//go:build !linux

package timer

import (
	"errors"
	"fmt"
	"syscall"
)

const maxPidfds = 0

func share(n int) int { return n }

// A handle names a process. Without pidfds and start times it is only its number.
type handle struct {
	pid int
	fd  int // always -1
}

func openHandle(pid int, _ bool) (*handle, error) {
	h := &handle{pid: pid, fd: -1}
	if !h.alive() {
		return nil, errNoProcess
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

func growPipe(int) {}
