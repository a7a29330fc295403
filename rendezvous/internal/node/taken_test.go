package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"golang.org/x/sys/unix"
)

// boundPort returns a port of this host that is in use, and where nothing listens.
func boundPort(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return addr.(*unix.SockaddrInet4).Port
}

// Where another program of this host has the endpoint's port and does not serve there, the user is
// told so while the node tries on, and at the end.
func TestPortOfThisHostTaken(t *testing.T) {
	port := boundPort(t)
	want := fmt.Sprintf("port %d is in use on this host by an unknown process, and nothing answers there as a store", port)
	notes := make(chan string, 1000)
	h := open(t, fmt.Sprint("127.0.0.1:", port), 2, 2, "host0", func(s *rendezvous.Spec) {
		s.Settings.Connect, s.Settings.Join = 50*time.Millisecond, 500*time.Millisecond
		s.OnWaiting = func(w rendezvous.Waiting) {
			if w.Note != "" {
				notes <- w.Note
			}
		}
	})
	_, err := h.Next(t.Context())
	if err == nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "rank 0") {
		t.Errorf("got %v, want %s", err, want)
	}
	select {
	case note := <-notes:
		if !strings.HasPrefix(note, want) || !strings.Contains(note, "; giving up in ") {
			t.Errorf("said %q, want %s", note, want)
		}
	default:
		t.Error("nothing was said meanwhile")
	}
}

// A signal that ends the search for the rendezvous is the error, whatever was being looked up or tried.
func TestSignalWhileConnecting(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost"} {
		cause := errors.New("received signal SIGTERM")
		ctx, cancel := context.WithCancelCause(t.Context())
		h := open(t, fmt.Sprint(host, ":", boundPort(t)), 2, 2, "host0", func(s *rendezvous.Spec) {
			s.Settings.Connect = 50 * time.Millisecond
			s.OnWaiting = func(rendezvous.Waiting) { cancel(cause) }
		})
		if _, err := h.Next(ctx); err != cause {
			t.Errorf("%s: got %v, want %v", host, err, cause)
		}
	}
}
