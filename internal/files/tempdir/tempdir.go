// Package tempdir finds the directory for temporary files where Python's
// tempfile finds it: TMPDIR may name one that this host does not have, as a
// scheduler's setting from another host does.
package tempdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Find returns the first directory that is there and may be written to, an
// absolute path: of those that TMPDIR, TEMP and TMP name, /tmp, /var/tmp,
// /usr/tmp, and the working directory. Without any it returns os.TempDir(), so
// that using it says what is wrong. It changes nothing.
// Source: _get_default_tempdir in Python's tempfile.py.
func Find() string {
	named := []string{os.Getenv("TMPDIR"), os.Getenv("TEMP"), os.Getenv("TMP")}
	for _, dir := range append(named, "/tmp", "/var/tmp", "/usr/tmp", ".") {
		if dir != "" && usable(&dir) {
			return dir
		}
	}
	return os.TempDir()
}

// ForSocket is Find, or /tmp where that is long: a socket's path has at most 103 bytes on some systems, of
// which 39 are left for the name of a directory and that of the socket.
func ForSocket() string {
	if dir := Find(); len(dir) <= 64 {
		return dir
	}
	return "/tmp"
}

// usable makes dir absolute, and reports whether files can be made in it.
func usable(dir *string) bool {
	abs, err := filepath.Abs(*dir)
	if err != nil {
		return false
	}
	*dir = abs
	fi, err := os.Stat(abs)
	return err == nil && fi.IsDir() && unix.Access(abs, unix.W_OK|unix.X_OK) == nil
}

// Existing returns the directory, or the nearest above it that exists: there it would be made.
func Existing(dir string) string {
	for {
		_, err := os.Stat(dir)
		up := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || up == dir {
			return dir
		}
		dir = up
	}
}
