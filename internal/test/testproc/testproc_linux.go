package testproc

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/procfs"
)

// The parent of a vfork is in uninterruptible sleep until its child ends or
// executes something. What counts as the process's state is that of its first
// thread, and it is only during initialisation that this code runs there.
func init() {
	if len(os.Args) < 3 || os.Args[1] != word || !slices.Contains(os.Args, "vfork") {
		return
	}
	runtime.LockOSThread()
	for i, step := range os.Args[2:] {
		if step != "vfork" {
			run([]string{step})
			continue
		}
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			for { // a copy of this program in which nothing but system calls works
				syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		}
		run(os.Args[2+i+1:])
		os.Exit(0)
	}
}

// CheckNothingLeft fails the test if a process with its tag still lives.
func (l *Lab) CheckNothingLeft() {
	l.t.Helper()
	if left := l.Left(); len(left) > 0 {
		l.t.Errorf("processes left: %v", left)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Left returns the live processes that carry the test's tag.
func (l *Lab) Left() []int {
	all, err := procfs.All()
	if err != nil {
		l.t.Fatal(err)
	}
	var left []int
	for _, p := range all {
		if env, err := procfs.Environ(p.PID); err == nil && p.Alive() && procfs.HasEnv(env, tagVar+"="+l.tag) {
			left = append(left, p.PID)
		}
	}
	return left
}

// seize traces a process, and says so, and again when it has ended. The gate holds up
// what follows: until the tracer has waited for it, its parent cannot.
func seize(pid int) {
	runtime.LockOSThread()
	_, _, errno := syscall.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
	if errno != 0 {
		check(errno)
	}
	say("seized")
	const exited = 1 // CLD_EXITED
	for {
		var info unix.Siginfo
		check(unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WALL, nil))
		if info.Code == exited {
			break
		}
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		check(err)
		check(unix.PtraceCont(pid, int(status.StopSignal())))
	}
	say("over")
	run([]string{"gate"})
	_, err := unix.Wait4(pid, nil, unix.WALL, nil)
	check(err)
}

func look(what string) string {
	switch what {
	case "fds":
		dir, err := os.Open("/proc/self/fd")
		check(err)
		names, err := dir.Readdirnames(-1)
		check(err)
		var open []string
		for _, name := range names {
			fd := number(name)
			target, err := os.Readlink("/proc/self/fd/" + name)
			// What Go itself opens does not count: its poller, and the files with
			// its cgroup's share of the CPUs.
			if err == nil && fd != int(dir.Fd()) && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
				open = append(open, name)
			}
		}
		slices.Sort(open)
		return strings.Join(open, ",")
	case "cpus":
		var set unix.CPUSet
		check(unix.SchedGetaffinity(0, &set))
		var cpus []string
		for i := range 1024 {
			if set.IsSet(i) {
				cpus = append(cpus, strconv.Itoa(i))
			}
		}
		return strings.Join(cpus, ",")
	default:
		s, err := procfs.Read(os.Getpid())
		check(err)
		return fmt.Sprint(s.PID, " ", s.Parent, " ", s.Group, " ", s.Session)
	}
}
