package unixsock

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxPath is what the kernel takes as a socket's address. A longer path leads through
// /proc/self/fd, which leaves maxName for the file's own name.
const (
	maxPath = 107
	maxName = 60
)

// WithAddress calls use with an address for the socket at path: path itself or,
// when that is too long for the kernel, one that leads through its open directory.
func WithAddress(path string, use func(addr string) error) error {
	if len(path) <= maxPath {
		return use(path)
	}
	dir, name := filepath.Split(path)
	if len(name) > maxName {
		return fmt.Errorf("socket name %q has %d bytes: want at most %d, or a shorter path in all (%d)",
			name, len(name), maxName, maxPath)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name))
}
