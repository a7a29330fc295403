package tcpstore_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/storetest"
	"github.com/muster-run/muster/store/tcpstore"
)

// to returns what dials a Shared over real connections.
func to(t testing.TB, s *tcpstore.Shared) func(context.Context) (net.Conn, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go s.Serve(nc)
		}
	}()
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", ln.Addr().String())
	}
}

// relay returns a server that follows nothing yet.
func relay(t testing.TB) *tcpstore.Server {
	t.Helper()
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Relay: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// following returns a relay of a new Shared.
func following(t testing.TB) *tcpstore.Server {
	t.Helper()
	s := relay(t)
	follow(t, s, to(t, tcpstore.NewShared()))
	return s
}

func follow(t testing.TB, s *tcpstore.Server, dial func(context.Context) (net.Conn, error)) {
	t.Helper()
	if err := s.Follow(t.Context(), dial); err != nil {
		t.Fatal(err)
	}
}

// awaitWaiting returns when n clients of a relay wait.
func awaitWaiting(t testing.TB, s *tcpstore.Server, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); s.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients wait, want %d", s.Waiting(), n)
		}
	}
}

// ofBoth runs a test with servers that have their data, and with relays.
func ofBoth(t *testing.T, test func(*testing.T, func(testing.TB) *tcpstore.Server)) {
	t.Run("memory", func(t *testing.T) { test(t, listen) })
	t.Run("relay", func(t *testing.T) { test(t, following) })
}

// TestRelay has clients at two relays.
func TestRelay(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(t testing.TB, n int) []store.Store {
		dialShared := to(t, tcpstore.NewShared())
		relays := [2]*tcpstore.Server{relay(t), relay(t)}
		for _, s := range relays {
			follow(t, s, dialShared)
		}
		all := make([]store.Store, n)
		for i := range all {
			all[i] = dial(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(relays[i%2].Port())))
		}
		return all
	}})
}
