package process

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// isSubreaper says whether orphaned descendants come to this program.
func isSubreaper() bool {
	var is int32
	_, _, errno := syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&is)), 0)
	return errno == 0 && is != 0
}

// setThreadName sets what ps shows of the calling thread.
func setThreadName(name string) {
	text := append([]byte(name), 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&text[0])), 0)
}
