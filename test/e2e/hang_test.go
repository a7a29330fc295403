//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
)

// An autopsy is what autopsy.json says.
type autopsy struct {
	Summary string `json:"summary"`
	Seconds float64
	Workers []struct {
		Rank   int
		Python struct {
			Source   string
			Problems []string
		}
	}
}

// readJSON reads the one file that matches a pattern.
func readJSON(t testing.TB, pattern string, v any) {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v, want one file", pattern, found, err)
	}
	text, err := os.ReadFile(found[0])
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A rank that does not come to an all_reduce makes all three miss their deadlines, or,
// without any, makes the group hang. All are killed, the evidence names the rank,
// and the next attempt succeeds.
func TestHangIsExplained(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, flags, cause string
		env                []string
	}{
		{"torch's timers", "", `missed a deadline: timer "a step" ran out at `, []string{"TIMER=1", "TORCHELASTIC_ENABLE_FILE_TIMER=1"}},
		{"hang timeout", "--hang-timeout 8 --autopsy-timeout 60", "missed a deadline: --hang-timeout: ranks 0-1 wait in all_reduce 2 of the default group (16 B float32); rank 2 has not come: in load_batch (hang.py:", nil},
		{"one spins", "--hang-timeout 8 --autopsy-timeout 60", "missed a deadline: --hang-timeout: ranks 0-1 wait in all_reduce 2 of the default group (16 B float32); rank 2 has not come: in load_batch (hang.py:", []string{"SPIN=1"}},
	} {
		if tt.name == "hang timeout" && os.Getenv("MUSTER_E2E_LONG") == "" {
			continue // as TestHostsHang, but for the next attempt, which the others here have
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			j := run(t, muster(t), withPython(t, append(tt.env, testproc.Unpaused)...), fmt.Sprintf("--standalone --nproc-per-node 3 --max-restarts 1 --log-dir %s %s", dir, tt.flags), "testdata/hang.py").want(0).noneLeft(0)
			if !slices.Contains(strings.Split(j.out(), "\n"), "sum 9") {
				t.Errorf("the second attempt does not get to its end\n%s", j.console())
			}
			var report struct {
				Cause, Autopsy string
				Failures       []struct {
					Rank int
					Kind string
				}
			}
			readJSON(t, filepath.Join(dir, "*", "attempt_0", "report.json"), &report)
			if !strings.HasPrefix(report.Cause, "rank 2 ") || !strings.Contains(report.Cause, tt.cause) {
				t.Errorf("cause: %s", report.Cause)
			}
			var a autopsy
			readJSON(t, filepath.Join(dir, "*", "attempt_0", "autopsy.json"), &a)
			if !strings.Contains(a.Summary, "2 ranks in all_reduce (distributed_c10d.py") || !strings.Contains(a.Summary, "rank 2 in load_batch (hang.py") || report.Autopsy != a.Summary {
				t.Errorf("summary %q, in the report %q", a.Summary, report.Autopsy)
			}
			for _, w := range a.Workers {
				if w.Python.Source == "" {
					t.Errorf("no Python stack of rank %d: %q", w.Rank, w.Python.Problems)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(j.tmp, "*timer*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			t.Logf("%s; evidence taken in %.2f s", a.Summary, a.Seconds)
		})
	}
}

// Where the workers of a job on three hosts hang, each of muster's agents names the odd
// one, wherever it is, and what it cannot know.
func TestHangOverHosts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		other func(testing.TB) launcher
		wants []string
	}{
		{"muster", muster, []string{"2 ranks in all_reduce (distributed_c10d.py"}},
		{"with torchrun", torchrun, []string{"rank 0 in all_reduce (distributed_c10d.py", "nothing known of group rank 1 (group rank 1 is an agent of torchrun, which takes no calls)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "3", "")
			m.program, m.env = []string{"testdata/hang.py"}, withPython(t, testproc.Unpaused).env
			peers := []peer{{l: muster(t), addr: "1", hosts: true}, {l: tt.other(t), addr: "2"}, {l: muster(t), addr: "3"}}
			dirs := make([]string, len(peers))
			for i := range peers {
				dirs[i] = t.TempDir()
				peers[i].flags = "--log-dir " + dirs[i]
				if peers[i].l.name == "muster" {
					peers[i].flags += " --hang-timeout 8 --autopsy-timeout 60"
				}
			}
			agents := m.startAll(peers...)
			wantAll(agents, 1)
			for i, j := range agents {
				if j.l.name[:6] != "muster" {
					continue
				}
				var a autopsy
				readJSON(t, filepath.Join(dirs[i], "*", "attempt_0", "autopsy.json"), &a)
				j.says(a.Summary, "\nmuster: rank 2 (local_rank 0, pid ", " has not come: in load_batch (hang.py:")
				for _, want := range append(tt.wants, "rank 2 on ", " in load_batch (hang.py") {
					if !strings.Contains(a.Summary, want) {
						t.Errorf("%s: no %q in %s", j.l.name, want, a.Summary)
					}
				}
			}
		})
	}
}
