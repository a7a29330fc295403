package tcpstore

import (
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"
)

// A host to which there is no way yet is tried again: it may not be up, or its link
// may be down.
func TestDialUnreachable(t *testing.T) {
	t.Parallel()
	s, err := Listen(ServerConfig{Addr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	errnos := []syscall.Errno{syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN}
	var told []string
	d := newDialer(ClientConfig{
		Addr: s.Addr().String(), Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
		OnRetry: func(err *ConnectError, _ time.Duration) { told = append(told, err.advice()) },
	})
	left := errnos
	d.sockets.ControlContext, d.sockets.Control = nil, func(string, string, syscall.RawConn) error {
		if len(left) == 0 {
			return nil
		}
		errno := left[0]
		left = left[1:]
		return os.NewSyscallError("connect", errno)
	}
	conn, err := d.dial(t.Context(), handshake)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if len(told) != len(errnos) {
		t.Errorf("told %q, want one for each of %v", told, errnos)
	}
	for _, text := range told {
		if text != "check that the host is up and the route from this machine to that address" {
			t.Errorf("told %q", text)
		}
	}
}
