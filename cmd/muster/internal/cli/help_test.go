package cli

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update accepts it:\n%s", path, diff)
	}
}

func TestHelp(t *testing.T) {
	golden(t, "testdata/help_run.txt", runHelp("muster run"))
	golden(t, "testdata/help.txt", overview())
}

func TestHelpFits(t *testing.T) {
	for line := range strings.Lines(runHelp("muster run") + overview() + usageOf("completion")) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Every option is in the help once.
func TestHelpIsComplete(t *testing.T) {
	text := runHelp("muster run")
	for i := range options {
		name := "--" + options[i].name
		entries := 0
		for line := range strings.Lines(text) {
			left, ok := strings.CutPrefix(line, "  ")
			if !ok || left[0] == ' ' {
				continue
			}
			if left[2] == ',' {
				left = left[4:]
			}
			left = strings.TrimSpace(left)
			if word, _, _ := strings.Cut(left, " "); word == name {
				entries++
			}
		}
		if entries != 1 {
			t.Errorf("%s has %d entries", name, entries)
		}
	}
}
