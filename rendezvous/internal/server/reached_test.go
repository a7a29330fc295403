package server_test

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// A path is a connection with addresses.
type path struct {
	net.Conn
	local, remote string
}

func (p path) LocalAddr() net.Addr  { return tcpAddr(p.local) }
func (p path) RemoteAddr() net.Addr { return tcpAddr(p.remote) }

func tcpAddr(text string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(text), Port: 1} }

// A node that is on the server's host and gets rank 0 hears by which of its addresses
// the others have reached it: theirs may not be the one that it takes for its own.
func TestRank0HearsItsAddress(t *testing.T) {
	type node struct{ name, local, remote string } // without addresses: inside the server's process
	for _, tt := range []struct {
		name  string
		nodes []node
		want  string
	}{
		{"rank 0 in the server's process", []node{{name: "a"}, {"b", "10.0.0.1", "10.0.0.2"}, {"c", "10.0.0.1", "10.0.0.3"}}, "10.0.0.1"},
		{"rank 0 on the server's host", []node{{"a", "127.0.0.1", "127.0.0.1"}, {"b", "10.0.0.1", "10.0.0.2"}}, "10.0.0.1"},
		{"by its own address", []node{{"a", "10.9.0.1", "10.9.0.1"}, {"b", "fd00::1", "fd00::2"}}, "fd00::1"},
		{"most of them", []node{{name: "a"}, {"b", "10.9.0.1", "10.9.0.2"}, {"c", "10.0.0.1", "10.0.0.3"}, {"d", "10.0.0.1", "10.0.0.4"}}, "10.0.0.1"},
		{"rank 0 elsewhere", []node{{"a", "10.0.0.1", "10.0.0.2"}, {name: "b"}, {"c", "10.0.0.1", "10.0.0.3"}}, ""},
		{"all on one host", []node{{name: "a"}, {"b", "127.0.0.1", "127.0.0.1"}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := server.New(nil, slog.New(slog.DiscardHandler))
				defer s.Close()
				got := make([]string, len(tt.nodes))
				var all sync.WaitGroup
				for i, n := range tt.nodes {
					ours, theirs := net.Pipe()
					if n.local != "" {
						theirs = path{theirs, n.local, n.remote}
					}
					all.Go(func() { s.Serve(theirs) })
					c, err := server.Greet(t.Context(), ours, &server.Message{
						Host: n.name,
						Greeting: server.Greeting{
							RunID: "job", Node: &state.Node{Addr: n.name, PID: 1}, MinNodes: len(tt.nodes), MaxNodes: len(tt.nodes),
							KeepAlive: time.Second, KeepAliveLimit: 3 * time.Second, Role: "default", LocalWorldSize: 1,
						},
					}, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if err := c.Send(&server.Message{Type: server.Join}); err != nil {
						t.Fatal(err)
					}
					all.Go(func() {
						m, err := c.Recv(t.Context())
						if err != nil || m.Type != server.Round || m.Rank != i {
							t.Errorf("%s: %+v, %v", n.name, m, err)
							return
						}
						got[i] = m.Addr
						c.Close()
					})
				}
				all.Wait()
				want := make([]string, len(tt.nodes))
				want[0] = tt.want
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("addresses that nodes hear (-want +got):\n%s", d)
				}
			})
		})
	}
}

// A node that is gone is missed by the name of its host.
func TestMissingByName(t *testing.T) {
	l := newLab(t)
	l.run("hello 2 2 a b\njoin a b\ngone b\njoin a")
	l.send("a", server.Message{Type: server.Status})
	out := l.r.Out()
	at := slices.IndexFunc(out, func(e server.Envelope) bool { return e.Msg.Type == server.Status })
	if at < 0 {
		t.Fatalf("no status in %+v", out)
	}
	want := "1 of 2 nodes have joined (a), missing b"
	if got := fmt.Sprint(out[at].Msg.Waiting); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
