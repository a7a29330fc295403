package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/host/kmsg"
	"github.com/muster-run/muster/internal/host/numa"
	"github.com/muster-run/muster/internal/host/procfs"
)

// workerSystem is what Linux has for a worker.
type workerSystem struct {
	pidfd  int         // -1 where there are none
	cgroup *cgroup.Dir // nil without
}

// tagVar marks the descendants of a worker that has neither an error file of its
// own nor a cgroup.
const tagVar = "MUSTER_WORKER"

func selfPath() string { return "/proc/self/exe" }

// prepare does what concerns all workers of a group before the first is forked.
func (g *Group) prepare(plans []plan) {
	s := g.sup
	g.oomBase = oomBase{s.system.oomCounts(), kmsg.Now()}
	if s.system.wholeProgram {
		closeOnExec()
	}
	// The guard hears of the tags before the first fork: this program may be killed right after that.
	var records []string
	if s.isIdle() {
		records = append(records, "n")
	}
	for i := range plans {
		p := &plans[i]
		if p.tag == "" && s.system.cgroup == nil {
			g.tagByEnv(p)
		}
		if p.tag != "" {
			records = append(records, "t"+p.tag)
		}
	}
	s.guard.tell(records...)
}

// tag marks a worker that turns out to have no cgroup after prepare.
func (g *Group) tag(p *plan) {
	if p.tag == "" {
		g.tagByEnv(p)
		g.sup.guard.tell("t" + p.tag)
	} else if p.generation > 0 {
		g.sup.guard.tell("t" + p.tag)
	}
}

func (g *Group) tagByEnv(p *plan) {
	p.tag = fmt.Sprintf("%s=%d.%s.%s", tagVar, os.Getpid(), g.sup.system.random, workerName(g.number, p.worker))
	p.env = append(p.env, p.tag)
}

// closeOnExec keeps descriptors that this program was started with from its
// children. Those that Go code opened have the flag already.
func closeOnExec() {
	const first, last = 3, ^uint(0) >> 32 // of close_range, unsigned int
	if unix.CloseRange(first, last, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
}

// workerName is unique among those of this program.
func workerName(group int, w *worker) string {
	if w.generation > 0 {
		return fmt.Sprintf("%d.%d.%d", group, w.rank, w.generation)
	}
	return fmt.Sprintf("%d.%d", group, w.rank)
}

// spawn forks and executes one worker: in a session of its own, to be killed when
// this program ends, in its own cgroup if there is one.
func (g *Group) spawn(p *plan) error {
	s, w := g.sup, p.worker
	var err error
	if s.system.cgroup != nil {
		if w.system.cgroup, err = cgroup.Make(s.system.cgroup.Path(), workerName(g.number, w)); err != nil {
			g.log.Debug("no cgroup for a worker", "local_rank", w.rank, "error", err)
		}
	}
	if w.system.cgroup == nil {
		g.tag(p)
	}
	if !g.forkImage(p) {
		if err := g.exec(p); err != nil {
			if w.system.cgroup != nil {
				_ = w.system.cgroup.Remove()
			}
			return err
		}
	}
	// Until the guard hears of the worker, its tag is what it goes by.
	if s.guard != nil && w.system.cgroup == nil {
		if st, err := procfs.Read(w.pid); err == nil {
			s.guard.tell(fmt.Sprintf("w%d %d", w.pid, st.Start))
		}
	}
	return nil
}

// forkImage starts a worker by Config.Fork, and reports whether it could.
func (g *Group) forkImage(p *plan) bool {
	w := p.worker
	w.system.pidfd = -1
	if g.cfg.Fork == nil || g.cfg.Func != "" || len(g.cfg.ExtraFiles[w.rank]) > 0 {
		return false
	}
	err := g.cfg.Fork(Image{w.rank, p.path, p.argv, p.env, p.stdio[:]}, func(pid int) error {
		if g.sup.system.pidfds() {
			var err error
			if w.system.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
				return fmt.Errorf("open process %d: %w", pid, err)
			}
		}
		if dir := w.system.cgroup; dir != nil {
			if err := dir.Add(pid); err != nil {
				return err
			}
		}
		if err := numa.Bind(pid, g.cfg.CPUs[w.rank]); err != nil {
			return err
		}
		w.pid = pid
		g.sup.remember(pid) // before it is an orphan of the process that forked it
		return nil
	})
	if err == nil {
		return true
	}
	g.log.Warn("no warm start: workers are started cold", "local_rank", w.rank, "reason", err)
	if w.pid != 0 { // it may run, and there must not be two; nobody has reaped it, so the numbers are its own
		_ = syscall.Kill(-w.pid, syscall.SIGKILL)
		_ = syscall.Kill(w.pid, syscall.SIGKILL)
	}
	if w.system.pidfd >= 0 {
		unix.Close(w.system.pidfd)
		w.system.pidfd = -1
	}
	if w.pid != 0 {
		g.sup.forget(w.pid)
		w.pid = 0
	}
	return false
}

// exec starts a worker by fork and exec.
func (g *Group) exec(p *plan) error {
	s, w := g.sup, p.worker
	attr := g.attr(p)
	attr.Sys.Pdeathsig = syscall.SIGKILL
	if s.system.pidfds() {
		attr.Sys.PidFD = &w.system.pidfd
	}
	if dir := w.system.cgroup; dir != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, dir.FD()
	}
	restore, err := setAffinity(g.cfg.CPUs[w.rank])
	if err == nil {
		w.pid, err = syscall.ForkExec(p.path, p.argv, attr)
		if err != nil && w.system.cgroup != nil && perhapsCgroup(err) {
			err = g.spawnWithoutCgroup(p, attr, err)
		}
		restore()
	}
	return err
}

// perhapsCgroup reports whether an error of clone and exec can come from placing the
// child in a cgroup: old kernels, sandboxes, delegation.
func perhapsCgroup(err error) bool {
	switch errno, _ := errors.AsType[syscall.Errno](err); errno {
	case syscall.ENOSYS, syscall.EPERM, syscall.EACCES, syscall.EOPNOTSUPP, syscall.EBUSY,
		syscall.EINVAL, syscall.E2BIG, syscall.ENODEV:
		return true
	}
	return false
}

// spawnWithoutCgroup tries again in this program's own cgroup. If that works, the
// cgroup was the trouble, and the Supervisor does without from then on.
func (g *Group) spawnWithoutCgroup(p *plan, attr *syscall.ProcAttr, first error) error {
	g.tag(p)
	attr.Env, attr.Sys.UseCgroupFD = p.env, false
	pid, err := syscall.ForkExec(p.path, p.argv, attr)
	if err != nil {
		return err
	}
	g.log.Debug("no cgroups for workers", "error", first)
	_ = p.system.cgroup.Remove()
	p.pid, p.system.cgroup = pid, nil
	g.sup.system.dropCgroup()
	return nil
}

// setAffinity limits the calling thread, and with it what it forks, to cpus, and
// returns how to undo that. No cpus: no limit.
func setAffinity(cpus []int) (restore func(), err error) {
	if len(cpus) == 0 {
		return func() {}, nil
	}
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	if err := numa.Bind(0, cpus); err != nil {
		return nil, err
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }, nil
}

// peek says how the leader ended, without reaping it, so that the number stays its
// own; false if it has not, or nobody says.
func (w *worker) peek() (ending, bool) {
	var usage unix.Rusage
	info, err := waitid(unix.P_PID, w.pid, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, &usage)
	if err != nil || info.pid == 0 {
		return ending{}, false
	}
	const exited, dumped = 1, 3 // CLD_EXITED, CLD_DUMPED
	e := ending{
		code:   int(info.status),
		core:   info.code == dumped,
		user:   time.Duration(usage.Utime.Nano()),
		system: time.Duration(usage.Stime.Nano()),
		maxRSS: int64(usage.Maxrss) << 10,
	}
	if info.code != exited {
		e.code = -e.code
	}
	return e, true
}

// hasEnded reports whether the leader is a zombie.
func (w *worker) hasEnded() bool {
	_, ok := w.peek()
	return ok
}

// killAll sends SIGKILL to everything in the worker's cgroup at once.
func (w *worker) killAll() {
	if w.system.cgroup != nil {
		_ = w.system.cgroup.Kill() // an old kernel cannot; the processes are killed one by one too
	}
}

// release reaps a worker of which nothing is left, or lets go of one that is stuck. From here on its number, and
// that of its group and session, may be another process's, so this is the last that is done about it.
func (w *worker) release(g *Group) {
	_, _ = waitid(unix.P_PID, w.pid, unix.WEXITED|unix.WNOHANG, nil)
	if w.system.pidfd >= 0 {
		unix.Close(w.system.pidfd)
		w.system.pidfd = -1
	}
	g.sup.forget(w.pid)
	if dir := w.system.cgroup; dir != nil {
		if err := dir.Remove(); err != nil {
			g.log.Debug("cgroup of a worker stays until the end", "error", err)
		}
	} else {
		g.sup.guard.tell(fmt.Sprintf("x%d", w.pid))
	}
}

// kernelState returns the letter of a process's state, and where in the kernel it
// waits if that is D.
func kernelState(pid int) (state byte, where string) {
	st, err := procfs.Read(pid)
	if err != nil {
		return 0, "no longer there"
	}
	st = st.Living()
	if st.State != 'D' {
		return st.State, "state " + string(st.State)
	}
	return st.State, procfs.WaitChannel(st.PID)
}
