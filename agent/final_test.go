package agent_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/muster-run/muster/agent"
)

// A log at the level WARN has a job that failed for good, and no job that was told to stop.
func TestFailureIsAnError(t *testing.T) {
	var log bytes.Buffer
	j := newJob(t, "fail until", "9", 2)
	j.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
	if r := j.mustRun(t); !r.IsFailed() {
		t.Errorf("%+v", r)
	}
	if got := log.String(); !strings.Contains(got, agent.JobFailed) || !strings.Contains(got, "attempt 0 fails") {
		t.Errorf("the log has %q", got)
	}
}
