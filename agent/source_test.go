package agent_test

import (
	"strings"
	"testing"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/metrics"
)

// What package health asks for, without package launch; and what the workers of such an
// agent find in their environment.
func TestSource(t *testing.T) {
	j := newJob(t, "", "", 1)
	j.Spec.Entrypoint = "/bin/sh"
	j.Spec.Args = func(int) []string { return []string{"-c", `test "$TORCH_NCCL_ASYNC_ERROR_HANDLING" = 1`} }
	registry := metrics.NewRegistry()
	j.Metrics = metrics.NewJob(registry, metrics.Info{RunID: "job1"})
	a, err := agent.New(j.Config)
	if err != nil {
		t.Fatal(err)
	}
	source := a.Source(registry)
	if r, err := a.Run(t.Context()); err != nil || r.IsFailed() {
		t.Fatal(r.Err(), err)
	}
	var text strings.Builder
	if err := source.WriteMetrics(&text); err != nil || !strings.Contains(text.String(), "muster_") {
		t.Errorf("metrics %q, %v", text.String(), err)
	}
	if s := source.State(t.Context()); s.Job.RunID != "job1" || source.Alive().IsZero() {
		t.Errorf("state %+v", s.Job)
	}
}
