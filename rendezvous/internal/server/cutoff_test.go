package server_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Beat says once that most nodes are silent: it may be the one that is cut off. It does not say so
// of nodes that have left or died, nor of fewer.
func TestCutOff(t *testing.T) {
	for _, tt := range []struct {
		name         string
		silent, dead int // of four; the rest keep in touch
		want         bool
		ends         bool // TCP gives the silent connections up before the limit is over
	}{
		{"most", 3, 0, true, false},
		{"most, as TCP finds", 3, 0, true, true},
		{"half", 2, 0, false, false},
		{"all but one are dead", 0, 3, false, false},
		{"half of those that live", 1, 2, false, false},
		{"more than that", 2, 1, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := server.New(nil, slog.New(slog.DiscardHandler))
				var served sync.WaitGroup
				defer served.Wait()
				for i := range 4 {
					ours, theirs := net.Pipe()
					served.Go(func() { s.Serve(theirs) })
					hello := &server.Message{Type: server.Hello, Host: "a", Greeting: server.Greeting{
						RunID: "job", Node: &state.Node{Addr: fmt.Sprint("a", i), PID: 1}, MinNodes: 1, MaxNodes: 4,
						KeepAlive: time.Second, KeepAliveLimit: 3 * time.Second, Role: "default", LocalWorldSize: 1,
						Version: server.Version,
					}}
					if i < tt.silent {
						defer ours.Close()
						if tt.ends {
							time.AfterFunc(2900*time.Millisecond, func() { ours.Close() })
						}
						write(t, ours, hello)
						go io.Copy(io.Discard, ours)
						continue
					}
					c, err := server.Greet(t.Context(), ours, hello, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if i < tt.silent+tt.dead {
						c.Close()
					}
				}
				got := 0
				for range 60 {
					if time.Sleep(time.Second); s.Beat() {
						got++
					}
				}
				if want := map[bool]int{true: 1}[tt.want]; got != want {
					t.Errorf("said %d times, want %d", got, want)
				}
			})
		})
	}
}
