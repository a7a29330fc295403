package events_test

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/events"
)

// A file has who asked, the console has not: torchrun prints nothing of it.
func TestPreempted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	var console bytes.Buffer
	rank := 1
	both(t, path, &console).Record(events.PreemptedEvent{Time: time.UnixMilli(7), RunID: "job7", Hostname: "h", Role: "trainer", GroupRank: &rank, Restarts: 2,
		Host: "g", Signal: 15, SignalTime: 5})
	want := []string{`{"name": "muster.job.preempted", "source": "AGENT", "timestamp": 7, "metadata": {"run_id": "job7", "group_rank": 1, "role": "trainer", ` +
		`"hostname": "h", "agent_restarts": 2, "signalled_host": "g", "signal": "SIGTERM", "signal_time": 5}}`}
	if diff := cmp.Diff(want, contents(t, path)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if console.Len() > 0 {
		t.Errorf("the console has %s", &console)
	}
}
