package launch

import (
	"context"
	"log/slog"
	"syscall"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/process"
)

// control is what the job's user asks of it through its socket.
type control struct {
	*agent.Agent
	end context.CancelCauseFunc
	log *slog.Logger
}

// Stop does what SIGTERM does, also where the agent handles no signals.
func (c *control) Stop() {
	c.log.Warn("muster stop: this host is asked to leave the job")
	c.end(&process.SignalError{Signal: syscall.SIGTERM})
}
