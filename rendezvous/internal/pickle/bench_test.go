package pickle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// many returns a complete round of n nodes.
func many(n int) *state.State {
	s := state.NewState()
	s.Round, s.Complete = 3, true
	start := time.Date(2026, 11, 21, 4, 13, 7, 974432000, time.UTC)
	for i := range n {
		node := state.Node{Addr: fmt.Sprintf("node%05d.cluster.example", i), PID: 60000 + 7*i, LocalID: i % 3}
		s.Participants[node] = i
		s.LastHeartbeats[node] = start.Add(time.Duration(i) * 1234567 * time.Microsecond)
	}
	return s
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{16, 1000} {
		b.Run(fmt.Sprintf("ours/%d", n), func(b *testing.B) { benchDecode(b, pickle.Encode(many(n))) })
		b.Run(fmt.Sprintf("python/%d", n), func(b *testing.B) { benchDecode(b, asPython(many(n))) })
	}
}

func benchDecode(b *testing.B, data []byte) {
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := pickle.Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{16, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := many(n)
			b.SetBytes(int64(len(pickle.Encode(s))))
			b.ReportAllocs()
			for b.Loop() {
				pickle.Encode(s)
			}
		})
	}
}
