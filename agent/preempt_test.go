package agent_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/process"
)

// A preempted job has a report of its own kind, and says how the workers ended.
func TestPreempted(t *testing.T) {
	for _, tt := range []struct {
		function string
		grace    time.Duration
		cut      string
	}{{"wait", time.Hour, ""}, {"ignore", time.Hour, "second signal"}, {"ignore", time.Millisecond, "end of the grace period"}} {
		prefix := fifos(t, 2)
		j := newJob(t, tt.function, prefix, 2)
		j.ShutdownTimeout, j.PreemptionSignals, j.Host = tt.grace, []syscall.Signal{syscall.SIGUSR2, syscall.SIGTERM}, "a"
		hurry := make(chan struct{})
		j.Hurry = hurry
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			started(t, prefix, 2)
			cancel(&process.SignalError{Signal: syscall.SIGTERM})
		}()
		if tt.cut == "second signal" {
			j.Logger = slog.New(onLog{slog.DiscardHandler, "shutting down workers", func() { close(hurry) }})
		}
		r, err := j.run(t, ctx)
		if r == nil || err == nil || r.Preempted == nil || r.Report != nil || r.ReportFile == "" {
			t.Fatalf("%+v: result %+v, %v", tt, r, err)
		}
		p := r.Preempted
		if p.Host != "a" || p.Signal != failure.Signal(syscall.SIGTERM) || p.CutShort != tt.cut || p.Grace != tt.grace.Seconds() || len(p.Workers) != 2 {
			t.Errorf("%+v: %+v", tt, p)
		}
		for i, w := range p.Workers {
			if w.Rank != i || w.PID == 0 || w.StoppedBy == 0 || w.Killed != (tt.cut != "") || w.Ended.Before(p.Time) {
				t.Errorf("%+v: worker %+v", tt, w)
			}
		}
		if b, err := os.ReadFile(r.ReportFile); err != nil || !strings.Contains(string(b), `"preempted": {"host": "a", "signal": "SIGTERM"`) {
			t.Errorf("the report has %s, %v", b, err)
		}
	}
}

// A signal that a scheduler sends to all processes ends a worker before the agent hears of it.
func TestPreemptedWorkerFirst(t *testing.T) {
	const sig = syscall.SIGKILL // which Go leaves alone
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		l := newLab(t, names, func(h *host) { h.PreemptionSignals = []syscall.Signal{sig} })
		l.start(names...)
		l.all(names...)
		a := l.hosts["a"].agent
		if _, err := a.Signal(sig, -1); err != nil {
			t.Fatal(err)
		}
		for a.Workers()[0].Exit == nil {
			time.Sleep(time.Millisecond)
		}
		l.hosts["a"].cancel(&process.SignalError{Signal: sig})
		for _, name := range names {
			if r, err := l.ended(name); r == nil || r.Preempted == nil {
				t.Errorf("%s of %v: %+v, %v, want a preempted job", name, names, r, err)
			}
		}
	}
}
