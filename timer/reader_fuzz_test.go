package timer_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

// Whatever bytes come, in whatever pieces: good lines after them are found, and
// what is kept of a line stays small.
func FuzzReader(f *testing.F) {
	good := line(os.Getpid(), "s", 1e11, 9)
	f.Add([]byte(good+good[:30]+good), uint16(7))
	f.Add([]byte("\x00\xff\n\n{}{}{\"pid\": 1}\n"), uint16(1))
	f.Add([]byte(strings.TrimSpace(good)+strings.TrimSpace(good)), uint16(90))
	f.Add([]byte(strings.Repeat("{\"", 1000)), uint16(100))
	f.Add([]byte(strings.Repeat("x", 200_000)+"\n"), uint16(60_000))
	f.Fuzz(func(t *testing.T, text []byte, piece uint16) {
		s, err := timer.NewServer(timer.Config{Owns: func(pid int) bool { return pid == os.Getpid() }, Logger: slog.New(slog.DiscardHandler),
			MaxTimers: 1000, Reap: func(context.Context, *timer.Expiry) error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		n := int(piece) + 1
		var pieces [][]byte
		for rest := text; len(rest) > 0; rest = rest[min(n, len(rest)):] {
			pieces = append(pieces, rest[:min(n, len(rest))])
		}
		pieces = append(pieces, []byte("\n"), []byte(line(os.Getpid(), "the last", 2e11, 9)))
		stats, left := timer.Read(s, pieces)
		if left > 64<<10 {
			t.Errorf("%d bytes are kept", left)
		}
		if stats.FIFO.Malformed > stats.FIFO.Lines || stats.FIFO.TooLong > stats.FIFO.Malformed {
			t.Errorf("got %+v", stats)
		}
		var got []string
		for _, r := range s.Live(0) {
			if r.Seconds() == 2e11 {
				got = append(got, r.ScopeID)
			}
		}
		if diff := cmp.Diff([]string{"the last"}, got); diff != "" {
			t.Errorf("after %q (-want +got)\n%s", text, diff)
		}
	})
}
