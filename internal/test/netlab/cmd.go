//go:build linux

package netlab

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
)

// A Cmd is an exec.Cmd whose process runs inside a host. It is started by its own
// Start, Run, Output or CombinedOutput; the embedded Cmd's would start it outside.
// For an exec.Cmd made elsewhere there is Host.Start.
type Cmd struct {
	*exec.Cmd
	host *Host
}

// Command returns a command to run inside the host, as exec.CommandContext does. The
// program is looked up as in the test process.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{exec.CommandContext(ctx, name, args...), h}
}

// Start starts the command inside the host; see Host.Start.
func (c *Cmd) Start() error { return c.host.Start(c.Cmd) }

// Run starts the command inside the host and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output is Run that returns what the command wrote to stdout. An exec.ExitError has
// its stderr, unless Stderr is set.
func (c *Cmd) Output() ([]byte, error) {
	var out, complaint bytes.Buffer
	c.Stdout = &out
	capture := c.Stderr == nil
	if capture {
		c.Stderr = &complaint
	}
	err := c.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && capture {
		e.Stderr = complaint.Bytes()
	}
	return out.Bytes(), err
}

// CombinedOutput is Run that returns what the command wrote to stdout and stderr.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}
