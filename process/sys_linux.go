package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// isSubreaper reports whether orphaned descendants come to this program.
func isSubreaper() bool {
	var is int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&is)), 0, 0, 0)
	return err == nil && is != 0
}

// setThreadName sets what ps shows of the calling thread.
func setThreadName(name string) {
	text := append([]byte(name), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&text[0])), 0, 0, 0)
}
