package node_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store/tcpstore"
)

// A wire passes connections on to an address, and loses what is sent there on demand.
type wire struct {
	net.Listener
	mu      sync.Mutex // guards the rest
	deaf    map[net.Conn]bool
	conns   int
	session net.Conn
}

// newWire returns a wire whose connection after so many is the session.
func newWire(t *testing.T, to string, after int) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, deaf: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			w.deaf[in] = false
			if w.conns == after {
				w.session = in
			}
			w.conns++
			w.mu.Unlock()
			all.Go(func() { io.Copy(in, out); in.Close() })
			all.Go(func() { io.Copy(lossy{w, in, out}, in); out.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		for in := range w.deaf {
			in.Close()
		}
		w.mu.Unlock()
		all.Wait()
	})
	return w
}

type lossy struct {
	w       *wire
	in, out net.Conn
}

func (l lossy) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	deaf := l.w.deaf[l.in]
	l.w.mu.Unlock()
	if deaf {
		return len(b), nil
	}
	return l.out.Write(b)
}

// lose loses what is sent on all connections that there are, and answers on the
// session until that ends: the node shall not be the first to miss the holder.
func (w *wire) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for in := range w.deaf {
		w.deaf[in] = true
	}
	pong := (&server.Message{Type: server.Pong}).Append(nil)
	go func() {
		for {
			if _, err := w.session.Write(pong); err != nil {
				return
			}
			<-time.After(20 * time.Millisecond)
		}
	}()
}

// A node that the holder has not heard of, and dropped, meets the others again.
func TestEvictedNodeComesBack(t *testing.T) {
	t.Parallel()
	const quick = 200 * time.Millisecond
	t.Run("c10d", func(t *testing.T) {
		t.Parallel()
		server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Prepare: func(s *tcpstore.Server) { c10d.Serve(s, nil) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		w := newWire(t, server.Addr().String(), 0)
		comesBack(t, w, open(t, server.Addr().String(), 2, 2, "a", nil), open(t, w.Addr().String(), 2, 2, "b",
			func(cfg *rendezvous.Spec) { cfg.Settings.KeepAliveInterval = quick }))
	})
	t.Run("static", func(t *testing.T) {
		t.Parallel()
		endpoint := freeEndpoint(t)
		w := newWire(t, endpoint, 3) // after three that count the nodes
		var nodes []rendezvous.Handler
		for rank, place := range []string{endpoint, w.Addr().String()} {
			s := spec(fmt.Sprint("host", rank))
			s.Endpoint, s.NodeRank, s.MaxNodes, s.Settings.KeepAliveInterval = place, rank, 2, quick
			h, err := static.New(s)
			if err != nil {
				t.Fatal(err)
			}
			atEnd(t, h)
			nodes = append(nodes, h)
		}
		comesBack(t, w, nodes[0], nodes[1])
	})
}

// comesBack has b, which is connected through w, dropped.
func comesBack(t *testing.T, w *wire, a, b rendezvous.Handler) {
	t.Helper()
	nexts(t, a, b)
	w.lose()
	for evicted := false; !evicted; {
		select {
		case c, open := <-b.Changes():
			if !open || c.Kind == rendezvous.Disconnected {
				t.Fatalf("%+v, want %v", c, rendezvous.Evicted)
			}
			evicted = c.Kind == rendezvous.Evicted
		case <-time.After(20 * time.Second):
			t.Fatal("b was not told that it is dropped")
		}
	}
	for _, info := range nexts(t, a, b) {
		if info.Round != 1 {
			t.Errorf("round %d, want 1", info.Round)
		}
	}
}
