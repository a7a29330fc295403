package jobs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/internal/test/pypeer"
)

const brokenScript = `
import os, sys, time
print("rank", os.environ["RANK"], "speaks", flush=True)
if os.environ["RANK"] == "0":
    time.sleep(60)
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    print("about to break", file=sys.stderr, flush=True)
    raise ValueError("boom")
main()
`

// muster runs a command of the program and returns what it prints.
func muster(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("muster", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("muster %q: %v: %s", args, err, &stderr)
	}
	return string(out)
}

// The same job run by torchrun and by muster leaves directories that tell the same
// story.
func TestReportOfTorchrunAndMuster(t *testing.T) {
	python, torchrun := pypeer.Python(t), pypeer.Torchrun(t)
	script := filepath.Join(t.TempDir(), "broken.py")
	if err := os.WriteFile(script, []byte(brokenScript), 0o644); err != nil {
		t.Fatal(err)
	}
	stories := map[string][]string{}
	for name, command := range map[string][]string{"torchrun": {torchrun}, "muster": {"muster", "run"}} {
		dir := filepath.Join(t.TempDir(), name)
		args := append(command[1:], "--nproc-per-node=2", "--max-restarts=1", "--redirects=3", "--log-dir="+dir, script)
		cmd := exec.Command(command[0], args...)
		cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHON_EXEC="+python)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Fatalf("%s: the job has succeeded: %s", name, out)
		}
		report := muster(t, "report", dir)
		for _, want := range []string{"failed after 2 attempts", "ValueError: boom", "error file):\n    Traceback (most recent call last):\n", "1/  "} {
			if !strings.Contains(report, want) {
				t.Errorf("%s: no %q in:\n%s", name, want, report)
			}
		}
		var run postmortem.Run
		if err := json.Unmarshal([]byte(muster(t, "report", "--json", dir)), &run); err != nil {
			t.Fatal(err)
		}
		stories[name] = story(&run)
		lines := muster(t, "logs", dir, "--rank", "1", "--local-rank", "--attempt", "0")
		if !regexp.MustCompile(`(?s)^\[1\]: rank 1 speaks\n\[1 err\]: about to break\n\[1 err\]: Traceback.*\[1 err\]: ValueError: boom\n`).MatchString(lines) {
			t.Errorf("%s: logs are:\n%s", name, lines)
		}
	}
	if diff := cmp.Diff(stories["torchrun"], stories["muster"]); diff != "" {
		t.Errorf("(-torchrun +muster):\n%s", diff)
	}
}

// story is what both directories tell of a run: torchrun's has neither ranks nor
// what became of the other workers.
func story(run *postmortem.Run) []string {
	told := []string{string(run.Outcome)}
	for _, a := range run.Attempts {
		told = append(told, a.Name, string(a.Outcome))
		if a.Duration() <= 0 {
			told = append(told, "took no time")
		}
		for _, f := range a.Failures[:min(1, len(a.Failures))] {
			told = append(told, f.Cause, f.TracebackFrom, f.Traceback, filepath.Base(f.ErrorFile))
		}
		for _, w := range a.Workers {
			told = append(told, filepath.Base(w.Dir), filepath.Base(w.Stdout), filepath.Base(w.Stderr))
		}
	}
	return told
}
