package testproc

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
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

// RefuseSome is as Refuse of one call, but refuses only as many as the counter says, and
// counts them down.
func RefuseSome(t testing.TB, refuse *atomic.Int32, call Call) []string {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{}) // an address of the kernel's choice
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		rights := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
		check(err)
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		check(err)
		fds, err := unix.ParseUnixRights(&messages[0])
		check(err)
		defer unix.Close(fds[0])
		answerCalls(fds[0], call.Errno, refuse)
	}()
	argv := Refuse(call)
	return append([]string{argv[0], argv[1], l.Addr().String()}, argv[2:]...)
}

// answerCalls says how each call ends that a filter asks about (struct seccomp_notif, answered by
// seccomp_notif_resp), until no process has the filter any more.
func answerCalls(fd int, errno syscall.Errno, refuse *atomic.Int32) {
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && err != unix.EINTR || poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
			return
		}
		var request [80]byte
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&request))); err != 0 {
			continue // the caller has been killed
		}
		var answer [24]byte
		copy(answer[:8], request[:8]) // the ID
		if refuse.Load() > 0 {
			refuse.Add(-1)
			binary.NativeEndian.PutUint32(answer[16:], uint32(-int32(errno)))
		} else {
			binary.NativeEndian.PutUint32(answer[20:], unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer)))
	}
}

// RefuseMain installs the filter and executes the program, if that is what this one
// was started for.
func RefuseMain() {
	if len(os.Args) < 2 || os.Args[1] != refuseWord {
		return
	}
	var calls []Call
	argv := os.Args[2:]
	asked, isAsked := strings.CutPrefix(argv[0], "@")
	if isAsked {
		argv = argv[1:]
	}
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
	code := filter(calls, isAsked)
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if !isAsked {
		check(unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0))
	} else {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: "@" + asked})
		check(err)
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
		if errno != 0 {
			check(errno)
		}
		_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil)
		check(err)
	}
	argv = argv[1:]
	check(syscall.Exec(argv[0], argv, os.Environ()))
}

// filter is the program that the kernel runs at each system call, over a struct
// seccomp_data: the number, the architecture, an address, six arguments of 64 bits.
// If it asks, another process says what becomes of the calls.
func filter(calls []Call, asks bool) []unix.SockFilter {
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
		answer := refuse | uint32(c.Errno)
		if asks {
			answer = unix.SECCOMP_RET_USER_NOTIF
		}
		code = append(code,
			unix.SockFilter{Code: load, K: 0},
			unix.SockFilter{Code: equal, Jf: 4, K: c.Number},
			unix.SockFilter{Code: load, K: uint32(16 + 8*c.Arg)},
			unix.SockFilter{Code: and, K: c.Mask},
			unix.SockFilter{Code: equal, Jf: 1, K: c.Value},
			unix.SockFilter{Code: ret, K: answer})
	}
	return append(code, unix.SockFilter{Code: ret, K: allow})
}
