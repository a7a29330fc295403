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
