package election

import (
	"syscall"
)

// childAttributes keeps a terminal's signals from a child, and tells it when the
// thread that started it, and so this process, is gone: beside the end of its
// stdin, in case somebody else has inherited the pipe.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGUSR1}
}
