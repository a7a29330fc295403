package process

import "time"

// WithoutPidfds makes a Supervisor act as on a kernel that has none. It must not
// have started anything.
func (s *Supervisor) WithoutPidfds() { s.system.noPidfd = true }

// HasCgroup says whether workers get cgroups.
func (s *Supervisor) HasCgroup() bool { return s.system.cgroup != nil }

// CgroupPath is the directory of the workers' cgroups.
func (s *Supervisor) CgroupPath() string { return s.system.cgroup.Path() }

// GuardPID is the guard's, 0 before the first start and where there is none.
func (s *Supervisor) GuardPID() int {
	if s.system.guard == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.system.guard.pid
}

var (
	ParseKill   = parseKill
	IsSubreaper = isSubreaper
	LookPath    = lookPath
	ReadWards   = readWards
	ReadResult  = readResult
	ErrNoResult = errNoResult
)

// A Wards is what a guard looks for.
type Wards = wards

func (w *wards) Cgroup() string          { return w.cgroup }
func (w *wards) Tags() []string          { return w.tags }
func (w *wards) Files() []string         { return w.files }
func (w *wards) Workers() map[int]uint64 { return w.workers }
func (w *wards) End(deadline time.Time)  { w.end(deadline) }
