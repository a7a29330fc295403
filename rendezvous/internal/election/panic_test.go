package election_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

// A child that panics is known by the first line of that; its stacks are for nobody.
func TestChildPanics(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "muster-quorum")
	script := "#!/bin/sh\nprintf 'panic: no space left\\n\\ngoroutine 1 [running]:\\nmain.main()\\n' >&2\nexit 2\n"
	if err := testproc.WriteProgram(program, script); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	err := failure(t, election.Config{
		Elect:   pipe.Elect{RunID: "r", Addr: "a:1", Endpoints: []string{"h:1"}},
		Program: program,
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err == nil || !strings.Contains(err.Error(), "the last time with: exit status 2: panic: no space left") {
		t.Errorf("got %v", err)
	}
	if text := log.String(); strings.Contains(text, "goroutine") {
		t.Errorf("the log has stacks:\n%s", text)
	}
}

// What etcd's own logger writes is at DEBUG, and says of whom it is.
func TestChildLogsEtcd(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "muster-quorum")
	script := `#!/bin/sh
echo '{"level":"warn","ts":"2026-11-28T15:10:00.000000Z","caller":"rafthttp/probing_status.go:68","msg":"prober detected unhealthy status","rtt":"0s","error":"refused"}' >&2
echo '{"time":"2026-11-28T15:10:00Z","level":"WARN","msg":"ours","n":1}' >&2
exit 2
`
	if err := testproc.WriteProgram(program, script); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	_ = failure(t, election.Config{
		Elect:   pipe.Elect{RunID: "r", Addr: "a:1", Endpoints: []string{"h:1"}},
		Program: program,
		Logger:  slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	text := regexp.MustCompile(`time=\S+ | pid=\d+`).ReplaceAllString(log.String(), "")
	for _, want := range []string{
		`level=DEBUG msg="etcd: prober detected unhealthy status" error=refused rtt=0s` + "\n", "level=WARN msg=ours n=1\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
