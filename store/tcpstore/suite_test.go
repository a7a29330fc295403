package tcpstore_test

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/storetest"
	"github.com/muster-run/muster/store/tcpstore"
)

// patience bounds what happens at once on an idle machine.
const patience = 2 * time.Minute

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func listen(t testing.TB) *tcpstore.Server {
	t.Helper()
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Logger: quiet})
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

func dial(t testing.TB, addr string) *tcpstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: addr, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func clients(t testing.TB, n int) []store.Store {
	s := listen(t)
	all := make([]store.Store, n)
	for i := range all {
		all[i] = dial(t, s.Addr().String())
	}
	return all
}

func TestClient(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: clients})
}

func TestView(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(t testing.TB, n int) []store.Store {
		s := listen(t).Store()
		all := make([]store.Store, n)
		for i := range all {
			all[i] = s
		}
		return all
	}})
}

// TestMixed has handles of both kinds on one server.
func TestMixed(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(t testing.TB, n int) []store.Store {
		s := listen(t)
		all := make([]store.Store, n)
		for i := range all {
			if all[i] = s.Store(); i%2 == 0 {
				all[i] = dial(t, s.Addr().String())
			}
		}
		return all
	}})
}

func TestPrefixOfClient(t *testing.T) {
	storetest.Run(t, storetest.Subject{Shared: true, Open: func(t testing.TB, n int) []store.Store {
		all := clients(t, n)
		for _, key := range []string{"k", "other/k"} {
			if err := all[0].Set(t.Context(), key, []byte("other")); err != nil {
				t.Fatal(err)
			}
		}
		for i := range all {
			all[i] = store.Prefix("pre", all[i])
		}
		return all
	}})
}

// A logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// listenLogged returns a server and what it logs.
func listenLogged(t testing.TB) (*tcpstore.Server, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, log
}
