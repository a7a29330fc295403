package procfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/procfs"
)

func TestReadAndWrite(t *testing.T) {
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
	if err := procfs.WriteFile(path, "yy"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); !strings.HasPrefix(string(got), "yyx") {
		t.Errorf("after WriteFile the file begins with %.5q", got)
	}
}

func TestMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := procfs.ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile: %v", err)
	}
	if err := procfs.WriteFile(path, "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("WriteFile: %v", err)
	}
}
