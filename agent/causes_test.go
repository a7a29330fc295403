package agent

import (
	"syscall"
	"testing"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/process"
)

func TestExitCause(t *testing.T) {
	tests := []struct {
		name   string
		exit   process.Exit
		missed string
		want   failure.Cause
	}{
		{"success", process.Exit{PID: 1}, "", failure.CauseSuccess},
		{"exit code", process.Exit{PID: 1, Code: 3}, "", failure.CauseExitCode},
		{"signal", process.Exit{PID: 1, Code: -11}, "", failure.CauseSignal},
		{"killed by somebody", process.Exit{PID: 1, Code: -9}, "", failure.CauseSignal},
		{"killed for memory", process.Exit{PID: 1, Code: -9, OOMKilled: "oom_kill 1"}, "", failure.CauseOOM},
		{"killed for memory while it was being stopped", process.Exit{PID: 1, Code: -9, OOMKilled: "oom_kill 1", StoppedBy: syscall.SIGTERM}, "", failure.CauseOOM},
		{"stopped", process.Exit{PID: 1, Code: -15, StoppedBy: syscall.SIGTERM}, "", failure.CauseStopped},
		{"stopped, and well", process.Exit{PID: 1, StoppedBy: syscall.SIGTERM}, "", failure.CauseStopped},
		{"missed a deadline", process.Exit{PID: 1, Code: -9}, "timer \"sc\" ran out", failure.CauseTimer},
		{"hung", process.Exit{PID: 1, Code: -9, StoppedBy: syscall.SIGKILL}, failure.HangPrefix + "no output", failure.CauseHang},
		{"stuck", process.Exit{PID: 1, Code: -9, Uninterruptible: "61 s"}, "", failure.CauseUninterruptible},
		{"cannot be killed", process.Exit{PID: 1, Code: -9, Abandoned: "state D", StoppedBy: syscall.SIGTERM}, "", failure.CauseUninterruptible},
		{"not started", process.Exit{Code: 1}, "", failure.CauseNotStarted},
	}
	for _, tt := range tests {
		if got := exitCause(tt.exit, tt.missed); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
