package agent

import (
	"syscall"
	"testing"

	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
)

func TestExitCause(t *testing.T) {
	tests := []struct {
		name   string
		exit   process.Exit
		missed string
		want   metrics.Cause
	}{
		{"success", process.Exit{PID: 1}, "", metrics.CauseSuccess},
		{"exit code", process.Exit{PID: 1, Code: 3}, "", metrics.CauseExitCode},
		{"signal", process.Exit{PID: 1, Code: -11}, "", metrics.CauseSignal},
		{"killed by somebody", process.Exit{PID: 1, Code: -9}, "", metrics.CauseSignal},
		{"killed for memory", process.Exit{PID: 1, Code: -9, OOMKilled: "oom_kill 1"}, "", metrics.CauseOOM},
		{"killed for memory while it was being stopped", process.Exit{PID: 1, Code: -9, OOMKilled: "oom_kill 1", StoppedBy: syscall.SIGTERM}, "", metrics.CauseOOM},
		{"stopped", process.Exit{PID: 1, Code: -15, StoppedBy: syscall.SIGTERM}, "", metrics.CauseStopped},
		{"stopped, and well", process.Exit{PID: 1, StoppedBy: syscall.SIGTERM}, "", metrics.CauseStopped},
		{"missed a deadline", process.Exit{PID: 1, Code: -9}, "timer \"sc\" ran out", metrics.CauseTimer},
		{"hung", process.Exit{PID: 1, Code: -9, StoppedBy: syscall.SIGKILL}, hangPrefix + "no output", metrics.CauseHang},
		{"stuck", process.Exit{PID: 1, Code: -9, Uninterruptible: "61 s"}, "", metrics.CauseUninterruptible},
		{"cannot be killed", process.Exit{PID: 1, Code: -9, Abandoned: "state D", StoppedBy: syscall.SIGTERM}, "", metrics.CauseUninterruptible},
		{"not started", process.Exit{Code: 1}, "", metrics.CauseNotStarted},
	}
	for _, tt := range tests {
		if got := exitCause(tt.exit, tt.missed); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
