//go:build !linux

package process

import (
	"errors"
	"syscall"

	"github.com/muster-run/muster/internal/host/procfs"
)

// leftovers stands for the whole process group with one entry. The group's number
// is reserved as long as a process is in it.
func (g *Group) leftovers(w *worker) []procfs.Stat {
	if err := syscall.Kill(-w.pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return nil
	}
	return []procfs.Stat{{PID: w.pid, Group: w.pid, Session: w.pid}}
}

type census struct{}

type leftover struct {
	stat    procfs.Stat
	watched bool
	sent    syscall.Signal
}

func (s *Supervisor) openLeftover(p procfs.Stat) *leftover { return &leftover{stat: p} }

func (l *leftover) close()                          {}
func (l *leftover) reap()                           {}
func (l *leftover) signal(sig syscall.Signal) error { return syscall.Kill(-l.stat.Group, sig) }
