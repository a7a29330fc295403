package process

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/host/procfs"
)

// execTime is how long processes may take from one environment to the next, all that a look
// finds together.
const execTime = 250 * time.Millisecond

// leftovers lists the live descendants of a worker whose leader has ended and is not
// reaped yet. They are in the worker's cgroup, or descend from an orphan: the leader's
// orphans are this program's children now. An orphan is this worker's by its session, by
// its environment, or because it was found before. It is the last worker's, too, where it
// can only be a worker's (system.onlyWorkers) or its environment says so.
func (g *Group) leftovers(w *worker) []procfs.Stat {
	var found []procfs.Stat
	if dir := w.system.cgroup; dir != nil {
		if populated, err := dir.Populated(); err != nil || populated {
			pids, _ := dir.PIDs()
			for _, pid := range pids {
				if p, err := lookAt(pid); err == nil && p.Alive() && pid != w.pid {
					found = append(found, p)
				}
			}
		}
	}
	s := g.sup
	orphans, err := procfs.Orphans()
	if err != nil || !slices.ContainsFunc(orphans, func(pid int) bool { return !s.isKnown(pid) }) {
		return found
	}
	if g.census == nil {
		all, _ := procfs.All()
		g.census = &census{all, map[int][]byte{}, time.Now().Add(execTime)}
	}
	s.forking.Lock() // a child that another group was just forking is in known afterwards
	last := s.system.wholeProgram && s.lastOne(w)
	s.forking.Unlock()
	for _, p := range closure(slices.Clone(g.census.all), func(p procfs.Stat) bool { return g.isOf(w, p, last) }) {
		if p.Alive() && !slices.ContainsFunc(found, func(q procfs.Stat) bool { return q.PID == p.PID }) {
			found = append(found, p)
		}
	}
	return found
}

// isOf reports whether a process is an orphan of a worker, which may be the last one.
func (g *Group) isOf(w *worker, p procfs.Stat, last bool) bool {
	y := &g.sup.system
	isOrphan := p.Parent == os.Getpid() && !g.sup.isKnown(p.PID)
	if isOrphan && !p.Alive() && p.Session == w.pid && !y.wholeProgram {
		reap(p.PID) // nobody else will
	}
	if !isOrphan || !p.Alive() {
		return false
	}
	// One that dies, or is stuck in the kernel, tells no environment any more.
	before := w.left.all[processID{p.PID, p.Start}] != nil
	if before || p.Session == w.pid || last && y.onlyWorkers && p.Session != y.session {
		return true
	}
	env := g.census.environ(p)
	return procfs.HasEnv(env, w.tag) || last && isOfAWorker(env)
}

// A census is what one look at all processes finds. The group looks once for all workers whose time
// it is (onTime): many that end together have many orphans.
type census struct {
	all  []procfs.Stat
	env  map[int][]byte // of the orphans that were asked
	late time.Time
}

func (c *census) environ(p procfs.Stat) []byte {
	env, ok := c.env[p.PID]
	if !ok && p.State != 'D' {
		awaitExec(p.PID, c.late)
		env, _ = procfs.Environ(p.PID)
		c.env[p.PID] = env
	}
	return env
}

// inherit finds out whether an orphan that is not in this program's session, as what it starts for itself
// is, can only be a worker's. It need not be where there are children before the program has started
// any, such as the tee of `exec muster run > >(tee log)`, or in a container whose PID 1 the program is.
func (y *system) inherit() {
	y.session, _ = unix.Getsid(0)
	orphans, _ := procfs.Orphans()
	y.onlyWorkers = os.Getpid() != 1 && !slices.ContainsFunc(orphans, func(pid int) bool {
		p, err := procfs.Read(pid)
		return err == nil && p.Alive() && !children.Has(pid)
	})
}

// isOfAWorker reports whether an environment has variables that workers have, and this program has not.
func isOfAWorker(env []byte) bool {
	return slices.ContainsFunc([]string{errorFileVar, "TORCHELASTIC_RUN_ID", tagVar}, func(name string) bool {
		_, own := os.LookupEnv(name)
		return !own && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+name+"="))
	})
}

// lookAt is procfs.Read, for what a control group says is there. Where /proc says
// nothing, it is taken for alive.
func lookAt(pid int) (procfs.Stat, error) {
	p, err := procfs.Read(pid)
	if errors.Is(err, procfs.ErrForeign) {
		return procfs.Stat{PID: pid, State: 'S'}, nil
	}
	return p, err
}

// isIdle reports whether nothing is left of any worker.
func (s *Supervisor) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known) == 0
}

// lastOne reports whether no other worker is left.
func (s *Supervisor) lastOne(w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known) == 1 && s.known[w.pid]
}

// hasTag reports whether a process has one of some entries in the environment that it
// was started with. One that is stuck in the kernel is not asked: the answer could
// take as long.
func hasTag(p procfs.Stat, tags ...string) bool {
	if p.State == 'D' || !slices.ContainsFunc(tags, func(tag string) bool { return tag != "" }) {
		return false
	}
	env, err := procfs.Environ(p.PID)
	return err == nil && slices.ContainsFunc(tags, func(tag string) bool { return tag != "" && procfs.HasEnv(env, tag) })
}

// awaitExec waits for a process that is about to execute a program: it has no environment in
// between, which takes microseconds, and longer on a busy machine.
func awaitExec(pid int, late time.Time) {
	for procfs.Executing(pid) && time.Now().Before(late) {
		time.Sleep(100 * time.Microsecond)
	}
}

// A leftover is a process that a worker left behind.
type leftover struct {
	stat    procfs.Stat
	pidfd   int            // -1 where there are none
	watched bool           // an event tells of its end
	sent    syscall.Signal // the last signal
}

func (s *Supervisor) openLeftover(p procfs.Stat) *leftover {
	return openLeftover(p, s.system.pidfds())
}

// openLeftover opens a process; nil if it has ended or its number is another's by now.
func openLeftover(p procfs.Stat, withPidfd bool) *leftover {
	l := &leftover{stat: p, pidfd: -1}
	if withPidfd {
		var err error
		if l.pidfd, err = unix.PidfdOpen(p.PID, 0); err == unix.ESRCH {
			return nil
		} else if err != nil {
			l.pidfd = -1
		}
	}
	if now, err := lookAt(p.PID); err != nil || now.Start != p.Start {
		l.close()
		return nil
	}
	return l
}

func (l *leftover) close() {
	if l.pidfd >= 0 {
		unix.Close(l.pidfd)
		l.pidfd = -1
	}
}

func (l *leftover) signal(sig syscall.Signal) error {
	if l.pidfd >= 0 {
		err := unix.PidfdSendSignal(l.pidfd, sig, nil, 0)
		if err != unix.ENOSYS && err != unix.EPERM {
			return err
		}
		// The kernel may forbid it, or a sandbox does.
	}
	if now, err := lookAt(l.stat.PID); err != nil || now.Start != l.stat.Start {
		return syscall.ESRCH
	}
	return syscall.Kill(l.stat.PID, sig)
}

// reap collects it if it has ended as this program's child.
func (l *leftover) reap() {
	if now, err := procfs.Read(l.stat.PID); errors.Is(err, procfs.ErrForeign) {
		reap(l.stat.PID)
	} else if err == nil && now.Start == l.stat.Start && !now.Alive() {
		reap(l.stat.PID)
	}
}

func reap(pid int) { _, _ = waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG, nil) }

// reapAdopted collects children that this program did not start and that have
// ended. Every child that is not known counts as one.
func (s *Supervisor) reapAdopted() {
	s.forking.Lock()
	defer s.forking.Unlock()
	orphans, err := procfs.Orphans()
	if err != nil {
		return
	}
	for _, pid := range orphans {
		if s.isKnown(pid) {
			continue
		}
		if p, err := procfs.Read(pid); err == nil && !p.Alive() {
			reap(pid)
		}
	}
}
