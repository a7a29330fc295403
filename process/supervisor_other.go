//go:build !linux

package process

import "runtime"

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
