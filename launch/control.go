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
func (c *control) Stop(by string) {
	c.log.Warn("muster stop: this host is asked to leave the job", "by", by)
	if by != "" {
		by = ", as " + by + " has asked"
	}
	c.end(&stopError{process.SignalError{Signal: syscall.SIGTERM}, by})
}

// A stopError is the cause of a stop by control.Stop: it is to the workers as the signal is.
type stopError struct {
	signal process.SignalError
	by     string
}

func (e *stopError) Error() string { return "muster stop: this host has left the job" + e.by }
func (e *stopError) Unwrap() error { return &e.signal }
