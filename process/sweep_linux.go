package process

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/procfs"
)

// sweep ends what a worker left behind and then tells the group. Processes get
// SIGTERM, have grace to end, and are killed; new ones that appear meanwhile are
// treated the same.
func (g *Group) sweep(w *worker, grace time.Duration) {
	defer func() { g.gone <- w }()
	sig := syscall.SIGTERM
	if grace <= 0 {
		sig = syscall.SIGKILL
	}
	var timeout <-chan time.Time
	cut := w.cut
	told := map[int]uint64{} // pid → start time of those that have had SIGTERM
	for {
		left := g.leftovers(w)
		if len(left) == 0 {
			return
		}
		if timeout == nil && sig != syscall.SIGKILL {
			timer := time.NewTimer(grace)
			defer timer.Stop()
			timeout = timer.C
		}
		ended := make(chan struct{})
		waiting := 0
		var fds []*os.File
		for _, p := range left {
			fd := openProcess(p)
			if fd == nil {
				continue
			}
			if told[p.pid] != p.start || sig == syscall.SIGKILL {
				told[p.pid] = p.start
				g.log.Debug("ending a process that a worker left behind", "local_rank", w.rank, "pid", p.pid, "signal", SignalName(sig))
				_ = signalPidfd(fd, sig)
			}
			fds = append(fds, fd)
			waiting++
			go func() {
				awaitEnd(fd)
				ended <- struct{}{}
			}()
		}
		if w.cgroup != nil && sig == syscall.SIGKILL {
			_ = w.cgroup.Kill()
		}
		for waiting > 0 {
			select {
			case <-ended:
				waiting--
				continue
			case <-timeout:
			case <-cut:
				cut = nil
			}
			timeout = nil
			if sig != syscall.SIGKILL {
				g.log.Warn("killing processes that a worker left behind", "local_rank", w.rank, "processes", waiting)
			}
			sig = syscall.SIGKILL
			for _, fd := range fds {
				_ = signalPidfd(fd, sig)
			}
		}
		for _, fd := range fds {
			fd.Close()
		}
		for _, p := range left {
			reap(p.pid)
		}
	}
}

// leftovers lists the live descendants of a worker whose leader has been reaped.
func (g *Group) leftovers(w *worker) []proc {
	if w.cgroup != nil {
		pids, err := w.cgroup.PIDs()
		if err == nil {
			return identify(pids)
		}
	}
	// The leader's orphans are our children now. Those of other workers may be
	// too: session and environment tell whose they are. Once no other worker is
	// left, all are ours to end.
	var mine []proc
	for _, p := range descendants(os.Getpid(), g.sup.isKnown) {
		if p.session == w.pid || p.group == w.pid || hasTag(p.pid, w.tag) || g.sup.lastOne(w) {
			mine = append(mine, p)
		}
	}
	return mine
}

// lastOne says whether w is the only worker not forgotten yet.
func (s *Supervisor) lastOne(w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.known)
	if s.guard != nil {
		n--
	}
	return n == 1 && s.known[w.pid]
}

// reapOrphans reaps adopted processes that have ended, so that none stays as a
// zombie. It takes every dead child that is not known for an adopted one.
func (s *Supervisor) reapOrphans() {
	s.forking.Lock()
	defer s.forking.Unlock()
	for _, pid := range children(os.Getpid()) {
		if st, err := readStat(pid); err == nil && st.state == 'Z' && !s.isKnown(pid) {
			reap(pid)
		}
	}
}

// openProcess opens a pidfd and checks that it is still the same process.
func openProcess(p proc) *os.File {
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	if st, err := readStat(p.pid); err != nil || st.start != p.start {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

func signalPidfd(fd *os.File, sig syscall.Signal) error {
	conn, err := fd.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	return serr
}

// awaitEnd returns once the process behind a pidfd has ended, or fd is closed.
func awaitEnd(fd *os.File) {
	conn, err := fd.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err != nil && err != unix.EINTR || n > 0
	})
}

// reap collects an adopted process that has ended, if it is our child.
func reap(pid int) {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if err != syscall.EINTR {
			return
		}
	}
}

func identify(pids []int) []proc {
	var list []proc
	for _, pid := range pids {
		if st, err := readStat(pid); err == nil && st.state != 'Z' && st.state != 'X' {
			list = append(list, st)
		}
	}
	return list
}

// hasTag says whether a process has an entry in the environment that it was
// started with.
func hasTag(pid int, tag string) bool {
	if tag == "" {
		return false
	}
	env, err := procfs.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(bytes.Split(env, []byte{0}), func(entry []byte) bool { return string(entry) == tag })
}
