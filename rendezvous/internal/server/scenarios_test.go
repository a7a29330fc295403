package server_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/scenarios with what the rendezvous answers")

// TestScenarios plays the files of testdata/scenarios, whose README says how they are written.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			scenarios := strings.SplitAfter(string(want), "\n\n")
			for i, scenario := range scenarios {
				scenario = strings.TrimRight(scenario, "\n")
				title, _, _ := strings.Cut(scenario, "\n")
				t.Run(strings.TrimPrefix(title, "# "), func(t *testing.T) {
					got := play(t, scenario)
					if d := cmp.Diff(strings.Split(scenario, "\n"), strings.Split(got, "\n")); d != "" && !*update {
						t.Errorf("(-want +got)\n%s", d)
					}
					scenarios[i] = strings.Replace(scenarios[i], scenario, got, 1)
				})
			}
			if !*update || t.Failed() {
				return
			}
			if err := os.WriteFile(file, []byte(strings.Join(scenarios, "")), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// play performs the steps of a scenario and returns it with the rendezvous' answers below each step.
func play(t *testing.T, scenario string) string {
	var story strings.Builder
	l := newLab(t)
	for line := range strings.SplitSeq(scenario, "\n") {
		switch {
		case strings.HasPrefix(line, "  "): // an answer, from before
		case strings.HasPrefix(line, "#"):
			story.WriteString(line + "\n")
		default:
			story.WriteString(line + "\n")
			for answer := range strings.Lines(l.run(line)) {
				story.WriteString("  " + answer)
			}
		}
	}
	return strings.TrimRight(story.String(), "\n")
}
