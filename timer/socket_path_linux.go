package timer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what the kernel takes as a socket's address.
const maxSocketPath = 107

// withAddress calls use with an address for the socket at path: path itself or,
// when that is too long for the kernel, one that leads through its open directory.
func withAddress(path string, use func(addr *unix.SockaddrUnix) error) error {
	if len(path) <= maxSocketPath {
		return use(&unix.SockaddrUnix{Name: path})
	}
	dir, name := filepath.Split(path)
	if len(name) > maxSocketName {
		return fmt.Errorf("socket name %q has %d bytes: want at most %d, or a shorter path in all (%d)",
			name, len(name), maxSocketName, maxSocketPath)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return use(&unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)})
}

// listenAt returns a listening socket at path, which is not blocking.
func listenAt(path string) (int, error) {
	if err := clearWay(path); err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	// The mode of the file that bind makes.
	err = unix.Fchmod(fd, 0o600)
	if err == nil {
		err = withAddress(path, func(addr *unix.SockaddrUnix) error { return unix.Bind(fd, addr) })
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen at %s: %w", path, err)
	}
	return fd, nil
}

// backlog is how many may wait to be accepted: all of a big host's processes when
// they start at once.
const backlog = 4096

// clearWay removes a socket that nobody listens at.
func clearWay(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket (%v) and is left alone: remove it, or choose another path", path, info.Mode())
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	err = withAddress(path, func(addr *unix.SockaddrUnix) error { return unix.Connect(fd, addr) })
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return fmt.Errorf("%s is in use by another program: choose another path", path)
}

// sameFile says whether path still is the socket that was made there.
func sameFile(path string, made fs.FileInfo) bool {
	info, err := os.Lstat(path)
	return err == nil && os.SameFile(info, made)
}
