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

// Stop returns what does as SIGTERM, also where the agent handles no signals.
func (c *control) Stop(by string, wholeJob bool) func() {
	c.Agent.Stopping()
	log := c.log
	if by != "" {
		log = log.With("by", by)
	}
	log.Warn("muster stop: this host is asked to leave the job")
	return func() { c.end(&stopError{process.SignalError{Signal: syscall.SIGTERM}, wholeJob}) }
}

// A stopError is the cause of a stop by control.Stop: it is to the workers as the signal is.
type stopError struct {
	signal   process.SignalError
	wholeJob bool
}

func (e *stopError) Error() string { return "muster stop: this host has left the job" }
func (e *stopError) Unwrap() error { return &e.signal }
