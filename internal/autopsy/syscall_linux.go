package autopsy

import (
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// parseSyscall reads the text of /proc/<pid>/syscall: a number and arguments,
// -1 where a thread sleeps outside a call, or "running".
func parseSyscall(text string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	number, err := strconv.Atoi(first)
	if err != nil || number < 0 {
		return ""
	}
	name := calls[number]
	if name == "" && runtime.GOARCH == "amd64" {
		name = amd64Calls[number]
	}
	if name == "" {
		return "syscall " + first
	}
	name, onFile := strings.CutSuffix(name, " fd")
	if arg, _, more := strings.Cut(rest, " "); onFile && more {
		if fd, err := strconv.ParseUint(arg, 0, 32); err == nil {
			name += " fd " + strconv.FormatUint(fd, 10)
		}
	}
	return name
}

// calls names the calls in which threads are found waiting, with "fd" where the first
// argument is a file descriptor.
var calls = map[int]string{
	unix.SYS_READ: "read fd", unix.SYS_WRITE: "write fd", unix.SYS_READV: "readv fd", unix.SYS_WRITEV: "writev fd",
	unix.SYS_PREAD64: "pread64 fd", unix.SYS_PWRITE64: "pwrite64 fd", unix.SYS_RECVFROM: "recvfrom fd",
	unix.SYS_RECVMSG: "recvmsg fd", unix.SYS_SENDTO: "sendto fd", unix.SYS_SENDMSG: "sendmsg fd",
	unix.SYS_CONNECT: "connect fd", unix.SYS_ACCEPT: "accept fd", unix.SYS_ACCEPT4: "accept4 fd",
	unix.SYS_EPOLL_PWAIT: "epoll_pwait fd", unix.SYS_IOCTL: "ioctl fd", unix.SYS_FSYNC: "fsync fd",
	unix.SYS_FDATASYNC: "fdatasync fd", unix.SYS_FLOCK: "flock fd",
	unix.SYS_FUTEX: "futex", unix.SYS_PPOLL: "ppoll", unix.SYS_PSELECT6: "pselect6", unix.SYS_NANOSLEEP: "nanosleep",
	unix.SYS_CLOCK_NANOSLEEP: "clock_nanosleep", unix.SYS_WAIT4: "wait4", unix.SYS_WAITID: "waitid",
	unix.SYS_OPENAT: "openat", unix.SYS_CLOSE: "close", unix.SYS_MMAP: "mmap",
	unix.SYS_MUNMAP: "munmap", unix.SYS_RT_SIGTIMEDWAIT: "rt_sigtimedwait",
	unix.SYS_RT_SIGSUSPEND: "rt_sigsuspend", unix.SYS_RESTART_SYSCALL: "restart_syscall",
	unix.SYS_SCHED_YIELD: "sched_yield",
}

// amd64Calls are those that newer architectures do not have.
var amd64Calls = map[int]string{7: "poll", 23: "select", 34: "pause", 232: "epoll_wait fd"}
