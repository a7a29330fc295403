package agent

import (
	"context"

	"github.com/muster-run/muster/agent/internal/evidence"
)

// SetKernelLog gives an agent another kernel's log.
func SetKernelLog(c *Config, read func(each func(record string))) { c.kernelLog = read }

// bareAttempt is one of an agent that collects no evidence.
func bareAttempt(ctx context.Context, a *Agent) *attempt {
	a.evidence, a.judge.a = &evidence.Config{}, a
	return a.newAttempt(ctx)
}
