package safeopen_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/files/safeopen"
)

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, tt := range []struct {
		text     string
		n, limit int
		want     string
	}{
		{"", 3, 100, ""},
		{"a\n", 0, 100, ""},
		{"a\n", 3, 100, "a\n"},
		{"a\nb", 3, 100, "a\nb"},
		{"a\nb\nc\nd\n", 3, 100, "b\nc\nd\n"},
		{"a\n\n\n", 3, 100, "a\n\n\n"},
		{"first\nsecond\nthird\n", 3, 15, "second\nthird\n"},
		{"one long line", 3, 4, "line"},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := safeopen.Tail(path, tt.n, tt.limit); err != nil || string(got) != tt.want {
			t.Errorf("the last %d lines of %q within %d bytes: %q, %v; want %q", tt.n, tt.text, tt.limit, got, err, tt.want)
		}
	}
	if _, err := safeopen.Tail(filepath.Join(t.TempDir(), "gone"), 3, 100); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := safeopen.Tail(t.TempDir(), 3, 100); err == nil {
		t.Error("a directory: no error")
	}
}

func FuzzTail(f *testing.F) {
	f.Add([]byte("a\nb\n"), uint8(3))
	f.Add([]byte("a\n"), uint8(0))
	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, text []byte, n uint8) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := safeopen.Tail(path, int(n), 1<<20)
		if err != nil || !bytes.HasSuffix(text, got) || bytes.Count(bytes.TrimSuffix(got, []byte("\n")), []byte("\n")) >= max(1, int(n)) {
			t.Fatalf("the last %d lines of %q: %q, %v", n, text, got, err)
		}
	})
}
