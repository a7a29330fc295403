package safeopen_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// A file that is refused has not been opened, whichever way leads to it.
func TestRefusedIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	for _, err := range []error{os.WriteFile(file, nil, 0o600), unix.Mkfifo(fifo, 0o600), os.Symlink("fifo", link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(fifo, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	for _, path := range []string{file, fifo} {
		if _, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	opened := func() bool {
		n, err := unix.Read(watch, make([]byte, 4096))
		if err != nil && err != unix.EAGAIN {
			t.Fatal(err)
		}
		return n > 0
	}

	refused := errors.New("refused")
	for _, tt := range []struct {
		name, path string
		flags      int
		want       error // nil where it is opened
	}{
		{"file", file, os.O_RDONLY, refused},
		{"FIFO", fifo, os.O_RDONLY, refused},
		{"FIFO to write to", fifo, os.O_WRONLY | syscall.O_NOFOLLOW, refused},
		{"link to a FIFO", link, os.O_RDONLY, refused},
		{"link", link, os.O_RDONLY | syscall.O_NOFOLLOW, syscall.ELOOP},
		{"descriptor of a FIFO", "/proc/self/fd/" + strconv.Itoa(fd), os.O_RDONLY, refused},
		{"none", filepath.Join(dir, "none"), os.O_RDONLY, fs.ErrNotExist},
		{"device", "/dev/null", os.O_RDONLY, refused},
		{"FIFO that nobody reads", fifo, os.O_WRONLY, syscall.ENXIO},
		{"FIFO to read", fifo, os.O_RDONLY, nil},
		{"file to read", file, os.O_RDONLY | syscall.O_NOFOLLOW, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, info, err := safeopen.OpenIf(tt.path, tt.flags, func(info fs.FileInfo) error {
				if tt.want != refused {
					return nil
				}
				return refused
			})
			if !errors.Is(err, tt.want) || (f == nil) != (err != nil) || (info == nil) != (err != nil) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if f != nil {
				if f.Name() != tt.path {
					t.Errorf("its name is %s", f.Name())
				}
				f.Close()
			}
			if got := opened(); got != (tt.want == nil) {
				t.Errorf("opened: %t", got)
			}
		})
	}

	f, _, err := safeopen.Open(fifo)
	if f != nil || err == nil || opened() {
		t.Errorf("Open of a FIFO: %v", err)
	}
}

// What takes the place of a file after it was looked at is not opened.
func TestOpenWhatWasSeen(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{os.WriteFile(path("file"), []byte("seen"), 0o600), os.WriteFile(path("other"), []byte("other"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, _, err := safeopen.OpenIf(path("file"), os.O_RDONLY, func(fs.FileInfo) error { return os.Rename(path("other"), path("file")) })
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := make([]byte, 16)
	if n, err := f.Read(text); string(text[:n]) != "seen" {
		t.Errorf("read %q, %v", text[:n], err)
	}
}
