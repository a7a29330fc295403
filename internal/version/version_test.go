package version_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/version"
)

func TestString(t *testing.T) {
	for want, i := range map[string]version.Info{
		"0.1.0":                            {Version: "0.1.0"},
		"0.1.0 (abc)":                      {Version: "0.1.0", Commit: "abc"},
		"0.1.0 (0123456789ab, 2026-11-22)": {Version: "0.1.0", Commit: "0123456789abcdef", Date: "2026-11-22T10:00:00Z"},
		"0.1.0 (0123456789ab with changes, 2026-11-22)": {
			Version: "0.1.0", Commit: "0123456789abcdef", Date: "2026-11-22T10:00:00Z", Modified: true},
	} {
		if got := i.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The change log begins with the version that this is.
func TestChangelog(t *testing.T) {
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	first := regexp.MustCompile(`(?m)^## (\S+)`).FindSubmatch(text)
	if first == nil || string(first[1]) != version.Version {
		t.Errorf("CHANGELOG.md begins with %q, want %q", first, version.Version)
	}
}

// The modules of the tree require the release that this is or becomes, and go.work puts the
// tree in its place.
func TestModules(t *testing.T) {
	release := " v" + strings.TrimSuffix(version.Version, "-dev")
	for _, name := range []string{"go.work", "bench/go.mod", "cmd/muster-quorum/go.mod", "internal/tools/go.mod", "test/go.mod"} {
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`github.com/muster-run/muster( v\S+)`).FindAllSubmatch(text, -1) {
			if string(found[1]) != release {
				t.Errorf("%s has%s, want%s", name, found[1], release)
			}
		}
	}
}
