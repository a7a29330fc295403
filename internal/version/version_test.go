package version_test

import (
	"os"
	"regexp"
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
