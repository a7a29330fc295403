package tempdir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/files/tempdir"
)

func TestFind(t *testing.T) {
	good, other := t.TempDir(), t.TempDir()
	gone := filepath.Join(good, "gone")
	file := filepath.Join(good, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(good)
	for _, tt := range []struct{ name, tmpdir, temp, tmp, want string }{
		{"named", good, other, "", good},
		{"none named", "", "", "", "/tmp"},
		{"gone", gone, "", "", "/tmp"},
		{"a file", file, "", "", "/tmp"},
		{"gone, another named", gone, "", other, other},
		{"the second", "", other, good, other},
		{"relative", ".", "", "", good},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("TMPDIR", tt.tmpdir)
			t.Setenv("TEMP", tt.temp)
			t.Setenv("TMP", tt.tmp)
			if got := tempdir.Find(); got != tt.want {
				t.Errorf("Find() = %q, want %q", got, tt.want)
			}
		})
	}
}
