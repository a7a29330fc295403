package process

import (
	"bytes"
	"time"
)

// WithoutPidfds makes a Supervisor act as on a kernel that has none. It must not
// have started anything.
func (s *Supervisor) WithoutPidfds() { s.system.noPidfd = true }

// HasCgroup reports whether workers get cgroups.
func (s *Supervisor) HasCgroup() bool { return s.system.cgroup != nil }

// CgroupPath is the directory of the workers' cgroups.
func (s *Supervisor) CgroupPath() string { return s.system.cgroup.Path() }

// GuardPID is the guard's, 0 before the first start and where there is none.
func (s *Supervisor) GuardPID() int {
	if s.guard == nil {
		return 0
	}
	s.guard.forking.Lock()
	defer s.guard.forking.Unlock()
	if s.guard.cmd == nil {
		return 0
	}
	return s.guard.cmd.Process.Pid
}

// GuardTags are the entries in environments that the next guard would look for.
func (s *Supervisor) GuardTags() []string {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	return readGuarded(bytes.NewReader(s.guard.told.workers)).tags
}

var (
	ParseKill   = parseKill
	IsSubreaper = isSubreaper
	ReadGuarded = readGuarded
	ReadResult  = readResult
	ErrNoResult = errNoResult
	ErrClosed   = errClosed
)

// Guarded is what a guard looks for.
type Guarded = guarded

func (w *guarded) Cgroup() string          { return w.cgroup }
func (w *guarded) Tags() []string          { return w.tags }
func (w *guarded) Files() []string         { return w.files }
func (w *guarded) Workers() map[int]uint64 { return w.workers }
func (w *guarded) End(deadline time.Time)  { w.end(deadline) }
