package server_test

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// A stopper is the connection of a process that is stopped before one of its reads, for a
// while: what comes meanwhile is there when it continues, and the deadline has passed.
type stopper struct {
	net.Conn
	reads  int // before it stops
	resume chan struct{}
}

func (s *stopper) Read(b []byte) (int, error) {
	if s.reads--; s.reads == -1 {
		<-s.resume
		return 0, os.ErrDeadlineExceeded
	}
	return s.Conn.Read(b)
}

// A node that was stopped for longer than its limit reads what the rendezvous has said
// before it takes the server for lost.
func TestStoppedNodeReadsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		conn := &stopper{Conn: ours, reads: 3, resume: make(chan struct{})} // Welcome takes two
		var speaking sync.WaitGroup
		speaking.Go(func() {
			if _, err := server.Read(theirs); err != nil {
				t.Error(err)
			}
			write(t, theirs, &server.Message{Type: server.Welcome})
			write(t, theirs, &server.Message{Type: server.Left})
			write(t, theirs, &server.Message{Type: server.Change, Kind: rendezvous.Evicted, Rank: -1})
		})
		c, err := server.Greet(t.Context(), conn, &server.Message{
			Host: "a",
			Greeting: server.Greeting{
				RunID: "job", Node: &state.Node{Addr: "a", PID: 1}, MinNodes: 1, MaxNodes: 1,
				KeepAlive: time.Hour, KeepAliveLimit: 3 * time.Hour, Role: "default", LocalWorldSize: 1,
			},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if m, err := c.Recv(t.Context()); err != nil || m.Type != server.Left {
			t.Fatalf("got %+v, %v", m, err)
		}
		close(conn.resume)
		m, err := c.Recv(t.Context())
		if err != nil || m.Kind != rendezvous.Evicted {
			t.Fatalf("got %+v, %v, want what the rendezvous has said", m, err)
		}
		speaking.Wait()
		// Then nothing comes any more.
		if _, err := c.Recv(t.Context()); !errors.Is(err, server.ErrSilent) {
			t.Errorf("got %v, want ErrSilent", err)
		}
	})
}

func write(t *testing.T, conn net.Conn, m *server.Message) {
	if _, err := conn.Write(m.Append(nil)); err != nil {
		t.Error(err)
	}
}
