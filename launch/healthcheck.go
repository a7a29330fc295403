package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/children"
)

// HealthCheckTimeout is how long a site's own check may take.
const HealthCheckTimeout = 5 * time.Minute

// maxHealthLines and maxHealthTail bound what a HealthCheckError repeats of what a
// check has written.
const (
	maxHealthLines = 10
	maxHealthTail  = 4 << 10
)

// A HealthCheckError says that a site's own check has found this host unfit. The host
// has not joined the job.
type HealthCheckError struct {
	Command string
	Code    int    // its exit status; -1 if it was killed or has not started
	Tail    string // the last lines that it wrote, to stdout or stderr
	Err     error  // what went wrong
}

func (e *HealthCheckError) Error() string {
	text := fmt.Sprintf("health check %.200q: %v; this host does not join the job", e.Command, e.Err)
	if e.Tail != "" {
		text += "; its last lines:\n    " + strings.ReplaceAll(e.Tail, "\n", "\n    ")
	}
	return text
}

func (e *HealthCheckError) Unwrap() error { return e.Err }

// RunHealthCheck runs a site's own check with `sh -c`, for HealthCheckTimeout at most.
// The error is a *HealthCheckError, or the cause of ctx if that ended first; the check
// is then killed with all that it has started.
func RunHealthCheck(ctx context.Context, command string, env []string) error {
	limited, cancel := context.WithTimeoutCause(ctx, HealthCheckTimeout, fmt.Errorf("no result within %v", HealthCheckTimeout))
	defer cancel()
	var out lastBytes
	cmd := exec.CommandContext(limited, "/bin/sh", "-c", command)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := children.Start(cmd)
	if err == nil {
		err = children.Wait(cmd)
	}
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success():
		return nil // ErrWaitDelay: something it has started goes on, and holds its output
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		err = context.Cause(limited)
	}
	code := -1
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	return &HealthCheckError{Command: command, Code: code, Tail: out.lines(maxHealthLines), Err: err}
}

// checkHealth runs the job's own check, if it has one.
func (cfg *Config) checkHealth(ctx context.Context) error {
	if cfg.HealthCheck == "" {
		return nil
	}
	start := time.Now()
	if err := RunHealthCheck(ctx, cfg.HealthCheck, cfg.Env); err != nil {
		return err
	}
	cfg.Logger.Info("the health check has passed", "run_id", cfg.RunID, "took", time.Since(start))
	return nil
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct{ buf bytes.Buffer }

var _ io.Writer = (*lastBytes)(nil)

func (l *lastBytes) Write(b []byte) (int, error) {
	n := len(b)
	b = b[max(0, n-maxHealthTail):]
	if over := l.buf.Len() + len(b) - maxHealthTail; over > 0 {
		l.buf.Next(over)
	}
	l.buf.Write(b)
	return n, nil
}

// lines returns the last n of them, without what a terminal might act upon.
func (l *lastBytes) lines(n int) string {
	text := strings.ToValidUTF8(l.buf.String(), "?")
	var kept []string
	for line := range strings.Lines(text) {
		line = strings.Map(func(r rune) rune {
			if r < ' ' && r != '\t' || r == 0x7f {
				return -1
			}
			return r
		}, line)
		if strings.TrimSpace(line) != "" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-n):], "\n")
}
