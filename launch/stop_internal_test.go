package launch

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/muster-run/muster/agent"
)

// Who stops the whole job, or one that has one host, does not hear of a host that leaves it.
func TestStopSays(t *testing.T) {
	const all, host, left = "muster stop: the job is stopped", "muster stop: this host is asked to leave the job", "muster stop: this host has left the job"
	for _, tt := range []struct {
		maxNodes      int
		wholeJob      bool
		log, errorSay string
	}{
		{1, false, all, all}, {2, true, all, all}, {2, false, host, left},
	} {
		var log bytes.Buffer
		var got error
		end := func(cause error) { got = cause }
		j := &job{agent: &agent.Agent{}, stop: context.CancelCauseFunc(end), cfg: Config{MaxNodes: tt.maxNodes, Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		j.control().Stop("", tt.wholeJob)()
		if !strings.Contains(log.String(), tt.log+"\"") || got == nil || got.Error() != tt.errorSay {
			t.Errorf("%d hosts, whole job %t: log %s error %v", tt.maxNodes, tt.wholeJob, log.String(), got)
		}
	}
}
