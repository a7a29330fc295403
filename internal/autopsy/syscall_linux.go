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
	name := syscallName(number)
	if name == "" {
		name = "syscall " + first
	}
	// Calls on a file say on which.
	if arg, _, ok := strings.Cut(rest, " "); ok && onFile[name] {
		if fd, err := strconv.ParseUint(arg, 0, 32); err == nil {
			name += " fd " + strconv.FormatUint(fd, 10)
		}
	}
	return name
}

// onFile are the calls whose first argument is a file descriptor.
var onFile = map[string]bool{
	"read": true, "write": true, "recvfrom": true, "recvmsg": true, "sendto": true, "sendmsg": true,
	"connect": true, "accept": true, "accept4": true, "ioctl": true, "fsync": true, "fdatasync": true,
	"flock": true, "pread64": true, "pwrite64": true, "epoll_wait": true, "epoll_pwait": true, "readv": true, "writev": true,
}

// syscallName names the calls in which threads are found waiting.
func syscallName(number int) string {
	switch number {
	case unix.SYS_FUTEX:
		return "futex"
	case unix.SYS_READ:
		return "read"
	case unix.SYS_WRITE:
		return "write"
	case unix.SYS_READV:
		return "readv"
	case unix.SYS_WRITEV:
		return "writev"
	case unix.SYS_PREAD64:
		return "pread64"
	case unix.SYS_PWRITE64:
		return "pwrite64"
	case unix.SYS_RECVFROM:
		return "recvfrom"
	case unix.SYS_RECVMSG:
		return "recvmsg"
	case unix.SYS_SENDTO:
		return "sendto"
	case unix.SYS_SENDMSG:
		return "sendmsg"
	case unix.SYS_CONNECT:
		return "connect"
	case unix.SYS_ACCEPT:
		return "accept"
	case unix.SYS_ACCEPT4:
		return "accept4"
	case unix.SYS_EPOLL_PWAIT:
		return "epoll_pwait"
	case unix.SYS_PPOLL:
		return "ppoll"
	case unix.SYS_PSELECT6:
		return "pselect6"
	case unix.SYS_NANOSLEEP:
		return "nanosleep"
	case unix.SYS_CLOCK_NANOSLEEP:
		return "clock_nanosleep"
	case unix.SYS_WAIT4:
		return "wait4"
	case unix.SYS_WAITID:
		return "waitid"
	case unix.SYS_IOCTL:
		return "ioctl"
	case unix.SYS_FSYNC:
		return "fsync"
	case unix.SYS_FDATASYNC:
		return "fdatasync"
	case unix.SYS_FLOCK:
		return "flock"
	case unix.SYS_OPENAT:
		return "openat"
	case unix.SYS_CLOSE:
		return "close"
	case unix.SYS_MMAP:
		return "mmap"
	case unix.SYS_MUNMAP:
		return "munmap"
	case unix.SYS_RT_SIGTIMEDWAIT:
		return "rt_sigtimedwait"
	case unix.SYS_RT_SIGSUSPEND:
		return "rt_sigsuspend"
	case unix.SYS_RESTART_SYSCALL:
		return "restart_syscall"
	case unix.SYS_SCHED_YIELD:
		return "sched_yield"
	}
	if runtime.GOARCH == "amd64" { // not among the calls of newer architectures
		switch number {
		case 7:
			return "poll"
		case 23:
			return "select"
		case 34:
			return "pause"
		case 232:
			return "epoll_wait"
		}
	}
	return ""
}
