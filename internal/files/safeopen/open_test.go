package safeopen_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// A file is made anew, and what was there is not written to.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "file"), filepath.Join(dir, "victim")
	for _, put := range []func(string, string) error{os.Symlink, os.Link, func(string, string) error { return nil }} {
		if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), put(victim, path)); err != nil {
			t.Fatal(err)
		}
		f, err := safeopen.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString("abc")
		if text, _ := os.ReadFile(victim); err != nil || string(text) != "precious" {
			t.Errorf("the victim holds %q, %v", text, err)
		}
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Size() != 3 {
			t.Errorf("made %v, %v", info, err)
		}
		if err := errors.Join(f.Close(), os.Remove(path)); err != nil {
			t.Error(err)
		}
	}
}

// Only regular files are opened, and nothing is waited for.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(path("file"), []byte("abc"), 0o600), os.Symlink("file", path("link")), os.Mkdir(path("dir"), 0o700), unix.Mkfifo(path("fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"link": "is a symbolic link; left alone", "dir": "is not a regular file; left alone", "fifo": "is not a regular file; left alone", "none": "no such file or directory",
	} {
		if f, _, err := safeopen.Open(path(name)); f != nil || err == nil || err.Error() != want || errors.Is(err, fs.ErrNotExist) != (name == "none") {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, want := range map[string]string{
		"link": "is a symbolic link; left alone", "dir": "is not a regular file; left alone", "fifo": "is not a regular file; left alone", "none": "no such file or directory",
	} {
		if f, _, err := safeopen.OpenIn(root, name); f != nil || err == nil || err.Error() != want || errors.Is(err, fs.ErrNotExist) != (name == "none") {
			t.Errorf("%s in a directory: %v, want %s", name, err, want)
		}
	}
	f, info, err := safeopen.Open(path("file"))
	if err != nil || info.Size() != 3 || !strings.HasSuffix(f.Name(), "file") {
		t.Fatalf("%v, %v", info, err)
	}
	f.Close()
}

// Where nothing can be looked at before it is opened, what is refused is closed again.
func TestOpenThenLook(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{nil, errors.New("refused")} {
		f, info, err := safeopen.OpenThenLook(fifo, os.O_RDONLY, func(info fs.FileInfo) error { return want })
		if err != want || (f == nil) != (want != nil) || (info == nil) != (want != nil) {
			t.Errorf("%v, want %v", err, want)
		}
		if f != nil {
			f.Close()
		}
		if f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0); !errors.Is(err, unix.ENXIO) {
			t.Errorf("somebody has it open to read: %v, %v", f, err)
		}
	}
}
