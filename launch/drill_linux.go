package launch

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// continueAfter has the kernel send this process SIGCONT after a time, also while it is stopped.
func continueAfter(d time.Duration) (forget func(), err error) {
	var timer int32
	// struct sigevent: sigev_value, sigev_signo, sigev_notify (SIGEV_SIGNAL is 0), 64 bytes.
	event := [16]int32{2: int32(unix.SIGCONT)}
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&timer))); errno != 0 {
		return nil, errno
	}
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if _, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&at)), 0, 0, 0); errno != 0 {
		return nil, errno
	}
	return func() { _, _, _ = unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(timer), 0, 0) }, nil
}
