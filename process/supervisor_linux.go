package process

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
)

// system is what Linux has for a Supervisor. All but cgroup and dropped stay as open has
// set them.
type system struct {
	wholeProgram bool
	noPidfd      bool   // for tests
	random       string // makes tags this Supervisor's
	cgroups      cgroup.Paths
	cgroup       *cgroup.Dir // holds the workers' cgroups; nil without
	dropped      *cgroup.Dir // the same, since it turned out to be of no use; then cgroup is nil
	oomFiles     []string    // the counters of kills that can hit a worker
	session      int         // this program's, by inherit
	onlyWorkers  bool        // the same

	// With wholeProgram: each SIGCHLD makes reaper look for adopted children.
	childEnded chan os.Signal
	reaper     sync.WaitGroup
}

// subreaper counts the Supervisors for which the program is a child subreaper.
// That is one flag of the whole program, so this has to be the whole program's too.
var subreaper struct {
	sync.Mutex
	users  int
	before bool
}

func becomeSubreaper() error {
	subreaper.Lock()
	defer subreaper.Unlock()
	if subreaper.users == 0 {
		subreaper.before = isSubreaper()
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become a child subreaper: %w", err)
		}
	}
	subreaper.users++
	return nil
}

func ceaseSubreaper() {
	subreaper.Lock()
	defer subreaper.Unlock()
	if subreaper.users--; subreaper.users == 0 && !subreaper.before {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	}
}

// pidfds reports whether clone, waitid and signals take pidfds here, as Go's os has found
// out for itself. The first call takes 0.2 ms unless a process was started before, as
// the guard is.
func (y *system) pidfds() bool { return !y.noPidfd && pidfdsWork() }

var pidfdsWork = sync.OnceValue(func() bool {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return false
	}
	defer self.Release()
	return self.WithHandle(func(uintptr) {}) == nil
})

// open gets what a Supervisor needs from the system.
func (s *Supervisor) open(cfg SupervisorConfig) error {
	if err := becomeSubreaper(); err != nil {
		return err
	}
	y := &s.system
	y.wholeProgram = cfg.WholeProgram
	y.random = fmt.Sprintf("%06x", rand.Uint32N(1<<24))
	if cfg.WholeProgram {
		y.inherit()
		closeOnExec() // the guard, too, inherits nothing
	}
	switch {
	case !cfg.Guard:
	case !calledGuardMain.Load():
		s.log.Warn(noGuard, "error", errNoGuardMain)
	default:
		s.guard = newGuard(s.log)
		go s.guard.ensure() // beside all that follows: the first workers wait for it
	}
	if cfg.WholeProgram {
		y.childEnded = make(chan os.Signal, 1)
		signal.Notify(y.childEnded, syscall.SIGCHLD)
		y.reaper.Go(func() {
			for range y.childEnded {
				s.reapAdopted()
			}
		})
	}
	var err error
	if y.cgroups, err = cgroup.Own(); err != nil {
		s.log.Debug("own cgroups", "error", err)
	}
	if !cfg.NoCgroup {
		if err := y.makeCgroup(); err != nil {
			s.log.Debug("no cgroup for the workers", "error", err)
		}
	}
	dir := y.cgroups.Unified
	if y.cgroup != nil {
		dir = y.cgroup.Path()
		s.guard.tell("c" + dir)
	}
	y.oomFiles = y.cgroups.OOMFiles(dir)
	return nil
}

// cgroupPrefix begins the name of every Supervisor's cgroup.
const cgroupPrefix = "muster-"

// makeCgroup makes the cgroup that holds those of the workers.
func (y *system) makeCgroup() error {
	if y.cgroups.Unified == "" {
		return fmt.Errorf("this process is in no cgroup of version 2")
	}
	var err error
	y.cgroup, err = cgroup.MakeLocked(y.cgroups.Unified, cgroupPrefix) // other guards leave it alone
	return err
}

// dropCgroup makes later workers do without cgroups.
func (y *system) dropCgroup() { y.dropped, y.cgroup = y.cgroup, nil }

// shut gives back what open got. All groups have ended.
func (s *Supervisor) shut() error {
	y := &s.system
	if y.childEnded != nil {
		signal.Stop(y.childEnded)
		close(y.childEnded)
		y.reaper.Wait()
		s.reapAdopted()
	}
	var err error
	if dir := cmp.Or(y.cgroup, y.dropped); dir != nil {
		err = removeCgroup(dir)
	}
	// Not before: if this program is killed now, the guard does the rest.
	if s.guard != nil {
		s.guard.stop()
	}
	ceaseSubreaper()
	return err
}

// removeTime is how long processes that have ended may take to leave their cgroup: on
// a busy machine the threads of one that has exited do so one after the other.
const removeTime = 3 * time.Second

// removeCgroup removes a cgroup whose last processes may still be on their way out
// of it, although they have been waited for. Nothing tells when they have left.
func removeCgroup(dir *cgroup.Dir) error {
	err := dir.Remove()
	late := time.Now().Add(removeTime)
	for wait := time.Millisecond; err != nil && time.Now().Before(late); wait = min(2*wait, 50*time.Millisecond) {
		time.Sleep(wait)
		err = dir.Remove()
	}
	return err
}
