package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/node"
)

// A candidate is an election of which one agent is always the leader, or none.
type candidate struct {
	leader *pipe.Leader
	lost   chan struct{}
}

func (c *candidate) Leader(ctx context.Context) (pipe.Leader, error) {
	if c.leader != nil {
		return *c.leader, nil
	}
	<-ctx.Done()
	return pipe.Leader{}, context.Cause(ctx)
}
func (c *candidate) Lost(int64) <-chan struct{}        { return c.lost }
func (c *candidate) Lease() <-chan bool                { return nil }
func (c *candidate) Close(context.Context, bool) error { return nil }

// An agent that finds nobody who holds the rendezvous says what the election waited
// for, or why the one that was elected could not be reached.
func TestNobodyHoldsTheRendezvous(t *testing.T) {
	t.Parallel()
	nobody := freeEndpoint(t)
	for _, tt := range []struct {
		name, lacking string
		leader        *pipe.Leader
		want          []string
	}{
		{"no leader", "1 of 3 members answer", nil, []string{"find the agent that holds the rendezvous timed out after 10s: 1 of 3 members answer"}},
		{"unreachable", "", &pipe.Leader{Addr: nobody, Term: 1}, []string{"timed out after 10s: ", nobody, "connection refused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var said strings.Builder
			told := []time.Time{time.Now()}
			cfg := spec("a")
			cfg.MinNodes, cfg.MaxNodes = 2, 2
			cfg.Settings.Join = 10 * time.Second
			cfg.OnWaiting = func(w rendezvous.Waiting) {
				said.WriteString(w.Note)
				if w.Note != "" { // else it waits no longer
					told = append(told, time.Now())
				}
			}
			cfg.Settings.KeepAliveInterval, cfg.Settings.KeepAliveMaxAttempt = 100*time.Millisecond, 3
			h, err := node.ElectedBy(cfg, func(context.Context, string) (node.Election, error) {
				return &candidate{tt.leader, make(chan struct{})}, nil
			}, tt.lacking)
			if err != nil {
				t.Fatal(err)
			}
			atEnd(t, h)
			_, err = h.Next(t.Context())
			if _, ok := errors.AsType[*rendezvous.TimeoutError](err); !ok {
				t.Fatalf("got %v, want a TimeoutError", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
			if len(told) < 3 { // of the three times in 10 s, a busy machine may leave one out
				t.Errorf("while waiting it said something %d times", len(told)-1)
			}
			for i := 1; i < len(told) && tt.leader == nil; i++ {
				if pause := told[i].Sub(told[i-1]); pause < 3*time.Second {
					t.Errorf("it said something again after %v: %s", pause, said.String())
				}
			}
			if text := said.String(); tt.leader == nil && !strings.Contains(text, "1 of 3 members answer; giving up in ") {
				t.Errorf("while waiting it said %q", text)
			}
			if text := said.String(); tt.leader != nil && (!strings.Contains(text, "cannot be reached") || !strings.Contains(text, nobody)) {
				t.Errorf("while waiting it said %q", text)
			}
		})
	}
}
