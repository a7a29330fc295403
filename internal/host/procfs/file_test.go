package procfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/host/procfs"
)

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, size := range []int{0, 1, 1023, 1024, 1025, 100_000} {
		want := strings.Repeat("x", size)
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := procfs.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("ReadFile of %d bytes: %d bytes, %v", size, len(got), err)
		}
	}
}

func TestMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := procfs.ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile: %v", err)
	}
}
