package launch

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// Hosts do not find each other at an address that each has for itself, whoever serves there,
// but for an etcd.
func TestMeetsAtLoopback(t *testing.T) {
	for _, tt := range []struct {
		backend, endpoint string
		want              bool
	}{
		{"c10d", "localhost:29400", true}, {"c10d", "127.0.0.1", true}, {"c10d", "[::1]:29400", true}, {"c10d", "host1:29400", false},
		{"static", "0.0.0.0:29500", true}, {"c10d", "[::]:29400", true},
		{"static", "127.0.0.1:29500", true}, {"quorum", "localhost", true}, {"quorum", "127.0.0.1:2379", true}, {"quorum", "host1,host2,host3", false},
		{"etcd", "localhost:2379", false},
	} {
		var cfg Config
		cfg.Rendezvous.Backend, cfg.Rendezvous.Endpoint = tt.backend, tt.endpoint
		if got := cfg.meetsAtLoopback(); got != tt.want {
			t.Errorf("%s at %s: got %t", tt.backend, tt.endpoint, got)
		}
	}
}

// A spare says that it waits, and then less and less often; what changes is said at once.
func TestWaitingLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newWaitingLine(&out)
		show := func(w rendezvous.Waiting, times int, want int) {
			t.Helper()
			out.Reset()
			for range times {
				l.show(w)
				time.Sleep(3 * time.Second)
			}
			if n := strings.Count(out.String(), "muster: waiting for hosts: "+w.String()+"\n"); n != want || strings.Count(out.String(), "\n") != want {
				t.Errorf("%d times %q: said %d times, want %d", times, w, n, want)
			}
		}
		spare := rendezvous.Waiting{MaxNodes: 2, Note: "this host is a spare"}
		show(spare, 19, 1)
		show(spare, 41, 1)
		show(spare, 24*60*20, 27) // a day: 3, 7, 15, 31 and 63 min after the first, then hourly
		for i := range 5 {
			show(rendezvous.Waiting{MaxNodes: 9, Joined: i}, 1, 1)
		}
		show(spare, 1, 1)
		l.show(rendezvous.Waiting{}) // the wait is over
		show(spare, 2, 1)
	})
}

// A long wait says less and less often how much time is left, and at once what has changed.
func TestWaitingLineSlowsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newWaitingLine(&out)
		show := func(what func(left time.Duration) rendezvous.Waiting, from, to time.Duration, want int) {
			t.Helper()
			out.Reset()
			for at := from; at < to; at += 3 * time.Second {
				l.show(what(10*time.Minute - at))
				time.Sleep(3 * time.Second)
			}
			if n := strings.Count(out.String(), "\n"); n != want {
				t.Errorf("from %v to %v: said %d times, want %d:\n%s", from, to, n, want, out.String())
			}
		}
		joined := func(n int) func(time.Duration) rendezvous.Waiting {
			return func(left time.Duration) rendezvous.Waiting {
				return rendezvous.Waiting{Joined: n, MinNodes: 3, MaxNodes: 3, Left: left}
			}
		}
		tried := func(left time.Duration) rendezvous.Waiting {
			return rendezvous.Waiting{Note: fmt.Sprintf("connection refused, tried %d times in 1s; check; giving up in %v", left, left)}
		}
		show(joined(1), 0, time.Minute, 20)
		show(joined(1), time.Minute, 9*time.Minute, 16)
		show(joined(2), 9*time.Minute, 9*time.Minute+30*time.Second, 1) // at once
		show(tried, 9*time.Minute+30*time.Second, 10*time.Minute, 1)
		l.show(rendezvous.Waiting{}) // the wait is over
		show(tried, 0, time.Minute, 20)
		show(tried, time.Minute, 10*time.Minute, 18)
	})
}

// A screen is what a terminal shows of what is written to it. The cursor stays in the last column until more comes.
type screen struct {
	width, row, col int
	rows            [][]byte
}

func (s *screen) Write(p []byte) (int, error) {
	for rest := string(p); rest != ""; {
		var up int
		if n, err := fmt.Sscanf(rest, "\x1b[%dA", &up); n == 1 && err == nil {
			s.row = max(0, s.row-up)
			_, rest, _ = strings.Cut(rest, "A")
			continue
		}
		if rest[0] == '\r' {
			s.col = 0
		} else if rest[0] == '\n' {
			s.row++
		} else {
			if s.col == s.width {
				s.row, s.col = s.row+1, 0
			}
			for len(s.rows) <= s.row {
				s.rows = append(s.rows, bytes.Repeat([]byte{' '}, s.width))
			}
			s.rows[s.row][s.col] = rest[0]
			s.col++
		}
		rest = rest[1:]
	}
	return len(p), nil
}

// text is all of it, without what is blank at the end.
func (s *screen) text() string { return strings.TrimRight(string(bytes.Join(s.rows, nil)), " ") }

// On a terminal there is one line, however long it is: the next takes its place, and the end of the wait clears it.
func TestWaitingLineOnATerminal(t *testing.T) {
	for _, width := range []int{80, 40, 200} {
		s := &screen{width: width}
		l := newWaitingLine(s)
		l.terminal, l.columns = true, width
		show := func(w rendezvous.Waiting, want string) {
			t.Helper()
			l.show(w)
			l.out.Flush(time.Second)
			if got := s.text(); got != want {
				t.Errorf("%d columns: %q, want %q", width, got, want)
			}
		}
		for left := 600 * time.Second; left > 590*time.Second; left -= time.Second {
			w := rendezvous.Waiting{Joined: 1, MinNodes: 3, MaxNodes: 3, Known: []string{"gpu-node-01.cluster"}, Left: left}
			show(w, "muster: waiting for hosts: "+w.String())
		}
		refused := rendezvous.Waiting{Note: "the rendezvous cannot be reached yet: dial tcp 10.0.0.1:29400: connect: connection refused; giving up in 9m30s"}
		show(refused, "muster: waiting for hosts: "+refused.String())
		short := rendezvous.Waiting{Note: "a spare"}
		show(short, "muster: waiting for hosts: a spare")
		show(rendezvous.Waiting{}, "")
		show(rendezvous.Waiting{}, "")
		if s.row != 0 || s.col != 0 {
			t.Errorf("%d columns: what follows begins in row %d, column %d", width, s.row, s.col)
		}
	}
}
