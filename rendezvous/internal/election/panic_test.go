package election_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
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
