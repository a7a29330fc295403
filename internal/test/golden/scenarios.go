package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Scenarios plays the files *.txt of a directory, as tests of their own; a README there says how they are written.
//
// A scenario begins with a title (# ...) and ends with an empty line. Each line is a step, but for comments (# ...).
// The indented lines below a step are what came of it. begin starts a scenario, and returns what performs a step of
// it and says what came of that, in lines.
func Scenarios(t *testing.T, dir string, begin func(t *testing.T) (step func(line string) string)) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
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
					got := play(scenario, begin(t))
					if d := cmp.Diff(strings.Split(scenario, "\n"), strings.Split(got, "\n")); d != "" && !*Update {
						t.Errorf("(-want +got); -update accepts it:\n%s", d)
					}
					scenarios[i] = strings.Replace(scenarios[i], scenario, got, 1)
				})
			}
			if !*Update || t.Failed() {
				return
			}
			if err := os.WriteFile(file, []byte(strings.Join(scenarios, "")), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// play performs the steps of a scenario and returns it with what came of each below it.
func play(scenario string, step func(string) string) string {
	var story strings.Builder
	for line := range strings.SplitSeq(scenario, "\n") {
		if strings.HasPrefix(line, "  ") { // what came of a step before
			continue
		}
		story.WriteString(line + "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		for answer := range strings.Lines(step(line)) {
			story.WriteString("  " + answer)
		}
	}
	return strings.TrimRight(story.String(), "\n")
}
