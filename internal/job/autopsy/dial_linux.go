package autopsy

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// resolve makes a path of the worker's one of ours: it may be relative to the
// worker's directory, or belong to a container's file system.
func resolve(s *subject, path string) string {
	if !filepath.IsAbs(path) {
		return procPath(s.PID, "cwd", path)
	}
	if elsewhere(s.PID) {
		return procPath(s.PID, "root") + path
	}
	return path
}

// dial connects to a Unix socket, if look has nothing against its file: who listens there
// may do something as soon as anybody connects.
func dial(ctx context.Context, socket string, look func(os.FileInfo) error) (net.Conn, error) {
	at, _, err := safeopen.OpenIf(socket, unix.O_PATH, look)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", procPath(os.Getpid(), "fd", strconv.Itoa(int(at.Fd()))))
	if e, ok := errors.AsType[*net.OpError](err); ok {
		e.Addr = &net.UnixAddr{Name: socket, Net: "unix"}
	}
	return conn, err
}

// elsewhere reports whether a process has another file system than we, as in a container.
func elsewhere(pid int) bool {
	ours, err1 := os.Readlink("/proc/self/ns/mnt")
	theirs, err2 := os.Readlink(procPath(pid, "ns", "mnt"))
	return err1 == nil && err2 == nil && ours != theirs
}
