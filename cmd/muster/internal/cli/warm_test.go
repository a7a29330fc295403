package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
)

func TestWarm(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	say := func(want int, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if got := command.Start(t.Context(), "warm", warmCommand, args, &stdout, &stderr); got != want {
			t.Errorf("muster warm %s: status %d, want %d\n%s", strings.Join(args, " "), got, want, stderr.String())
		}
		return stdout.String() + stderr.String()
	}
	if got := say(console.ExitOK, "status"); got != "nothing is learnt yet\n" {
		t.Errorf("without a cache: %q", got)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "muster", "warm", "abc")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"job":     "script /no/train.py\nstamp none\npython /no/python\nstamp none\n",
		"modules": "os\ntorch\ntorch.cuda\nbad name\nnetworkx\n",
		"left":    "networkx\tstarts a thread \x1b[31m\n",
		"took":    "2.345\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"status"}, console.ExitOK, "MODULES  LEFT OUT  TOOK   SCRIPT         INTERPRETER\n3        1         2.35s  /no/train.py   /no/python\n"},
		{[]string{"explain", "/no/train.py"}, console.ExitOK, "3 modules are imported ahead, 1 are left out\n  networkx: starts a thread "},
		{[]string{"explain", "other.py"}, console.ExitOK, "nothing is known about"},
		{[]string{"clear", "other.py"}, console.ExitOK, "nothing is known about"},
		{nil, console.ExitUsage, "hint: give status, explain or clear"},
		{[]string{"melt"}, console.ExitUsage, "unknown word"},
		{[]string{"status", "x"}, console.ExitUsage, "unexpected argument"},
	} {
		got := say(tt.status, tt.args...)
		if fields := strings.Join(strings.Fields(got), " "); !strings.Contains(fields, strings.Join(strings.Fields(tt.want), " ")) || strings.Contains(got, "\x1b") {
			t.Errorf("%q: got\n%swant\n%s", tt.args, got, tt.want)
		}
	}
	say(console.ExitOK, "clear", "/no/train.py")
	if got := say(console.ExitOK, "status"); got != "nothing is learnt yet\n" {
		t.Errorf("after clear: %q", got)
	}
}
