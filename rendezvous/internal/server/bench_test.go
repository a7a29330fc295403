package server_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// BenchmarkMeet has nodes join a round until all have their places, with every
// message turned into what goes over the connections; then again, as after a
// failure. It reports what that is for one node.
func BenchmarkMeet(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			bytes := 0
			for b.Loop() {
				bytes = meet(b, n)
			}
			b.ReportMetric(float64(bytes)/float64(n), "B/node")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/node")
		})
	}
}

// meet returns the bytes that nodes and rendezvous say.
func meet(b *testing.B, n int) (bytes int) {
	r := server.NewRendezvous("job", slog.New(slog.DiscardHandler))
	now := time.Unix(1e9, 0)
	var buf []byte
	placed := 0
	say := func(id server.ID, m *server.Message) {
		now = now.Add(time.Microsecond)
		buf = m.Append(buf[:0])
		bytes += len(buf)
		r.Receive(now, id, m)
		var last *server.Message
		for _, e := range r.Out() {
			if e.Msg.Type == server.Round {
				placed++
			}
			if e.Msg != last {
				last, buf = e.Msg, e.Msg.Append(buf[:0])
			}
			bytes += len(buf)
		}
	}
	for i := range n {
		say(server.ID(i+1), &server.Message{
			Type: server.Hello, Host: fmt.Sprintf("host%05d", i), Sent: now.UnixNano(),
			Greeting: server.Greeting{
				Version: server.Version, RunID: "job", Role: "trainer", LocalWorldSize: 8,
				Node: &state.Node{Addr: fmt.Sprintf("10.0.%d.%d", i/256, i%256), PID: 1000 + i}, MinNodes: n, MaxNodes: n, LastCall: lastCall,
				KeepAlive: 5 * time.Second, KeepAliveLimit: limit,
			},
		})
	}
	for range 2 {
		placed = 0
		for i := range n {
			say(server.ID(i+1), &server.Message{Type: server.Join})
		}
		if placed != n {
			b.Fatalf("%d of %d nodes have a place", placed, n)
		}
	}
	return bytes
}
