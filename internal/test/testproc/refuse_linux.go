package testproc

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Call is a system call that a sandbox refuses, or the uses of it in which the
// lower half of an argument, masked, has a value. No mask: all.
type Call struct {
	Number      uint32
	Arg         int // from 0
	Mask, Value uint32
	Errno       syscall.Errno
}

// What sandboxes and old kernels refuse of pidfds.
var (
	NoPidfdOpen   = Call{Number: unix.SYS_PIDFD_OPEN, Errno: unix.ENOSYS}
	NoPidfdSignal = Call{Number: unix.SYS_PIDFD_SEND_SIGNAL, Errno: unix.EPERM}
	NoPidfdWait   = Call{Number: unix.SYS_WAITID, Mask: ^uint32(0), Value: unix.P_PIDFD, Errno: unix.EINVAL}
	NoPidfdClone  = Call{Number: unix.SYS_CLONE, Mask: unix.CLONE_PIDFD, Value: unix.CLONE_PIDFD, Errno: unix.EINVAL}
	NoClone3      = Call{Number: unix.SYS_CLONE3, Errno: unix.ENOSYS}
	NoPtrace      = Call{Number: unix.SYS_PTRACE, Errno: unix.EPERM}
)

// NoPidfds is a system that knows nothing of pidfds, as gVisor and Linux 5.1.
func NoPidfds() []Call {
	return []Call{NoPidfdOpen, NoPidfdSignal, NoPidfdWait, NoPidfdClone, NoClone3}
}

const refuseWord = "testproc-refuse"

// Refuse returns what to put in front of a command line so that the program, and all
// that it starts, is refused some system calls. The test binary must call Main or
// RefuseMain first.
func Refuse(calls ...Call) []string {
	argv := []string{executable(), refuseWord}
	for _, c := range calls {
		argv = append(argv, fmt.Sprintf("%d,%d,%d,%d,%d", c.Number, c.Arg, c.Mask, c.Value, int(c.Errno)))
	}
	return append(argv, "--")
}

// RefuseMain installs the filter and executes the program, if that is what this one
// was started for.
func RefuseMain() {
	if len(os.Args) < 2 || os.Args[1] != refuseWord {
		return
	}
	var calls []Call
	argv := os.Args[2:]
	for ; argv[0] != "--"; argv = argv[1:] {
		var c Call
		var errno int
		_, err := fmt.Sscanf(strings.ReplaceAll(argv[0], ",", " "), "%d %d %d %d %d", &c.Number, &c.Arg, &c.Mask, &c.Value, &errno)
		check(err)
		c.Errno = syscall.Errno(errno)
		calls = append(calls, c)
	}
	runtime.LockOSThread() // the filter is the thread's, and exec leaves it alone
	check(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	code := filter(calls)
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	check(unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0))
	argv = argv[1:]
	check(syscall.Exec(argv[0], argv, os.Environ()))
}

// filter is the program that the kernel runs at each system call, over a struct
// seccomp_data: the number, the architecture, an address, six arguments of 64 bits.
func filter(calls []Call) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		and    = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret    = unix.BPF_RET | unix.BPF_K
		allow  = 0x7fff0000 // SECCOMP_RET_ALLOW
		refuse = 0x00050000 // SECCOMP_RET_ERRNO
	)
	var code []unix.SockFilter
	for _, c := range calls {
		code = append(code,
			unix.SockFilter{Code: load, K: 0},
			unix.SockFilter{Code: equal, Jf: 4, K: c.Number},
			unix.SockFilter{Code: load, K: uint32(16 + 8*c.Arg)},
			unix.SockFilter{Code: and, K: c.Mask},
			unix.SockFilter{Code: equal, Jf: 1, K: c.Value},
			unix.SockFilter{Code: ret, K: refuse | uint32(c.Errno)})
	}
	return append(code, unix.SockFilter{Code: ret, K: allow})
}
