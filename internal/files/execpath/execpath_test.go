package execpath_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/files/execpath"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	write("a/plain", 0o644)
	write("a/both", 0o644)
	write("b/both", 0o755)
	write("b/run", 0o755)
	write("b/dir/x", 0o644)
	path := dir + "/a::" + dir + "/b"
	t.Chdir(dir)
	write("here", 0o755)
	tests := []struct {
		name, want string
		err        error
	}{
		{name: "run", want: dir + "/b/run"},
		{name: "both", want: dir + "/b/both"}, // execvp continues after a file it may not run
		{name: "here", want: "./here"},        // the empty entry
		{name: "b/run", want: "b/run"},
		{name: "plain", err: fs.ErrPermission},
		{name: "a/plain", err: fs.ErrPermission},
		{name: "dir", err: fs.ErrPermission},
		{name: "none", err: fs.ErrNotExist},
		{name: "a/none", err: fs.ErrNotExist},
		{name: "", err: fs.ErrNotExist},
	}
	lookup := func(name string) (string, bool) { return path, name == "PATH" }
	for _, tt := range tests {
		got, err := execpath.Find(tt.name, lookup)
		if !errors.Is(err, tt.err) || tt.err == nil && got != tt.want {
			t.Errorf("Find(%q) = %q, %v; want %q, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
}
