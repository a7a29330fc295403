package testproc

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

// The main goroutine of a worker stays on the main thread, whose state is the
// process's.
func init() {
	if len(os.Args) > 1 && os.Args[1] == word {
		runtime.LockOSThread()
	}
}

// vfork puts the process into uninterruptible sleep: the parent of a vfork is in it
// until its child ends or executes something.
func vfork() {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for { // a copy of this program in which nothing but system calls works
			syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
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
func (l *Lab) Left() []int { return slices.Collect(maps.Keys(l.tag.Processes())) }

// Processes returns the live processes that carry the tag, with their command lines.
func (tag Tag) Processes() map[int]string {
	all, err := procfs.All()
	if err != nil {
		panic(err) // no test that looks for processes can continue without /proc
	}
	found := map[int]string{}
	for _, p := range all {
		if env, err := procfs.Environ(p.PID); err == nil && p.Alive() && procfs.HasEnv(env, tagVar+"="+string(tag)) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			found[p.PID] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return found
}

// AwaitEnd waits until a process has ended, at most d, and tells whether it has. It
// waits on the process, not on the clock.
func AwaitEnd(pid int, d time.Duration) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	for deadline := time.Now().Add(d); ; {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err != unix.EINTR {
			return n > 0
		}
	}
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
