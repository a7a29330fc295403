package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen listens at path, where only this user may connect. A socket there that nobody
// listens at is replaced; anything else is an error. Closing the listener leaves the file.
// network is "unix" or "unixpacket".
func Listen(network, path string) (l *net.UnixListener, err error) {
	if err := clear(network, path); err != nil {
		return nil, err
	}
	var late error
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// The mode of the file that bind makes, where the system takes it from the socket.
		return c.Control(func(fd uintptr) { late = unix.Fchmod(int(fd), 0o600) })
	}}
	err = WithAddress(path, func(addr string) error {
		made, err := cfg.Listen(context.Background(), network, addr)
		if err == nil {
			l = made.(*net.UnixListener)
			l.SetUnlinkOnClose(false)
		}
		return err
	})
	if err == nil && late != nil {
		if err = os.Chmod(path, 0o600); err != nil {
			l.Close()
		}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

// clear removes a socket that nobody listens at.
func clear(network, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket (%v) and is left alone: remove it, or choose another path", path, info.Mode())
	}
	conn, err := dial(context.Background(), network, path)
	switch {
	case err == nil:
		conn.Close()
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return fmt.Errorf("%s is in use by another program: choose another path", path)
}

func dial(ctx context.Context, network, path string) (conn *net.UnixConn, err error) {
	err = WithAddress(path, func(addr string) error {
		made, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			conn = made.(*net.UnixConn)
		}
		return err
	})
	return conn, err
}

// A Peer is the process at the other end of a connection: the one that connected, or that
// began to listen.
type Peer struct {
	UID int
	PID int // 0 if this process does not see its pid namespace
}

// PeerOf returns who is at the other end.
func PeerOf(conn *net.UnixConn) (p Peer, err error) {
	raw, err := conn.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { p, err = peer(int(fd)) }), err)
	}
	return p, err
}
