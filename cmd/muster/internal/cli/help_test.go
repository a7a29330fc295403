package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/runline"
	"github.com/muster-run/muster/internal/test/golden"
)

func TestHelp(t *testing.T) {
	golden.Is(t, "testdata/help_run.txt", runline.Help("muster run"))
	golden.Is(t, "testdata/help.txt", overview())
}

func TestHelpFits(t *testing.T) {
	for line := range strings.Lines(runline.Help("muster run") + overview() + command.Usage("completion")) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > console.HelpWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Every option is in the help once.
func TestHelpIsComplete(t *testing.T) {
	text := runline.Help("muster run")
	for _, o := range runline.Describe() {
		name := "--" + o.Name
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
