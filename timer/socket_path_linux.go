package timer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what the kernel takes as a socket's address. A longer path leads
// through /proc/self/fd, which leaves maxSocketName for the file's own name.
const (
	maxSocketPath = 107
	maxSocketName = 60
)

// withAddress calls use with an address for the socket at path: path itself or,
// when that is too long for the kernel, one that leads through its open directory.
func withAddress(path string, use func(addr string) error) error {
	if len(path) <= maxSocketPath {
		return use(path)
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
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name))
}

// listenAt listens at path.
func listenAt(path string) (l *net.UnixListener, err error) {
	if err := clearSocket(path); err != nil {
		return nil, err
	}
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		// The mode of the file that bind makes.
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	err = withAddress(path, func(addr string) error {
		made, err := cfg.Listen(context.Background(), "unixpacket", addr)
		if err == nil {
			l = made.(*net.UnixListener)
			l.SetUnlinkOnClose(false)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

// clearSocket removes a socket that nobody listens at.
func clearSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket (%v) and is left alone: remove it, or choose another path", path, info.Mode())
	}
	err = withAddress(path, func(addr string) error {
		conn, err := net.Dial("unixpacket", addr)
		if err == nil {
			conn.Close()
		}
		return err
	})
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return fmt.Errorf("%s is in use by another program: choose another path", path)
}
