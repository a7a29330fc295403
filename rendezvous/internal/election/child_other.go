//go:build !linux

package election

import (
	"syscall"
)

// childAttributes keeps a terminal's signals from a child, which sees by the end of
// its stdin that this process is gone.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
