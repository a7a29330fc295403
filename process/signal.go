package process

import (
	"fmt"
	"syscall"

	"github.com/muster-run/muster/internal/text"
)

// SignalName returns a signal's name, such as SIGTERM or SIGRTMIN+6; its number if it
// has none.
func SignalName(sig syscall.Signal) string {
	if name := text.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
