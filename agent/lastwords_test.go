package agent_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/muster-run/muster/logs"
)

// The end of a failed worker's stderr is kept by two other agents that have a place for it, whichever
// their ranks are.
func TestLastWordsAreKept(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	l := newLab(t, names, func(h *host) {
		if h.name == "a" || h.name == "b" {
			run, err := logs.New(logs.Config{Dir: os.DevNull, RunID: "job1", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = run.Close(false) })
			h.Logs = run
		}
	})
	l.start(names...)
	l.all(names...)["c"].tell(t, "exit 3 the last straw")
	kept := 0
	for _, name := range names {
		if r, err := l.ended(name); err != nil || !r.IsFailed() {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		files, err := filepath.Glob(filepath.Join(l.hosts[name].dir, "attempt_0", "stderr_of_rank_*.log"))
		if err != nil {
			t.Error(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if kept++; err != nil || string(text) != "the last straw\n" || filepath.Base(file) != "stderr_of_rank_2.log" || !slices.Contains([]string{"d", "e", "f"}, name) {
				t.Errorf("%s keeps %q in %s: %v", name, text, file, err)
			}
		}
	}
	if kept != 2 {
		t.Errorf("%d hosts keep it, want 2", kept)
	}
}
