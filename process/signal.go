package process

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// SignalName returns a signal's name, such as SIGTERM; its number if it has none.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
