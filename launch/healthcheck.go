package launch

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/children"
)

// healthCheckTimeout is how long a site's own check may take.
const healthCheckTimeout = 5 * time.Minute

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
	message := fmt.Sprintf("health check %.200q: %v; this host does not join the job", e.Command, e.Err)
	if e.Tail != "" {
		message += "; last lines of the check:\n    " + strings.ReplaceAll(e.Tail, "\n", "\n    ")
	}
	return message
}

func (e *HealthCheckError) Unwrap() error { return e.Err }

// CheckHealth runs HealthCheck, if there is one, with `sh -c`, as Run does before the host
// joins the job. The error is a *HealthCheckError, or the cause of ctx if that ended first;
// the check is then killed with all that it has started.
func (cfg *Config) CheckHealth(ctx context.Context) error {
	if cfg.HealthCheck == "" {
		return nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, healthCheckTimeout,
		fmt.Errorf("no result within %v", healthCheckTimeout))
	defer cancel()
	cmd := exec.CommandContext(limited, "/bin/sh", "-c", cfg.HealthCheck)
	cmd.Env = withoutSecrets(cfg.Env)
	cmd.WaitDelay = time.Second
	out, err := children.CombinedOutput(cmd, maxHealthTail)
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success():
		return nil // ErrWaitDelay: something it has started continues, and holds its output
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		err = context.Cause(limited)
	}
	code := -1
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	return &HealthCheckError{Command: cfg.HealthCheck, Code: code, Tail: lastLines(out), Err: err}
}

func lastLines(out []byte) string { return text.Tail(out, maxHealthLines, maxHealthTail, "\n") }
