package server_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// A spare hears how the job ends from the first node that says so, unless that is too long to be
// passed on.
func TestOutcome(t *testing.T) {
	for _, tt := range []struct {
		cause  int // its length
		passed bool
	}{{1, true}, {4000, true}, {4001, false}} {
		r, now := server.NewRendezvous("job1", slog.New(slog.DiscardHandler)), time.Now()
		for id := server.ID(1); id <= 2; id++ {
			m := hello("job1", int(id), 1)
			m.Type, m.Version, m.LastCall = server.Hello, server.Version, time.Second
			r.Receive(now, id, m)
			r.Receive(now, id, &server.Message{Type: server.Join})
		}
		r.Out()
		for _, cause := range []string{strings.Repeat("x", tt.cause), "later"} {
			r.Receive(now, 1, &server.Message{Type: server.Close, Outcome: &rendezvous.Outcome{Result: rendezvous.JobFailed, Cause: cause}})
		}
		heard := false
		for _, e := range r.Out() {
			if e.To != 2 {
				continue
			}
			heard = true
			if !e.Msg.Redundant || (e.Msg.Outcome != nil) != tt.passed || tt.passed && len(e.Msg.Outcome.Cause) != tt.cause {
				t.Errorf("a cause of %d bytes: the spare hears %+v", tt.cause, e.Msg)
			}
		}
		if !heard {
			t.Errorf("a cause of %d bytes: the spare hears nothing", tt.cause)
		}
	}
}
