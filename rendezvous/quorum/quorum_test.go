package quorum_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/quorum"
)

// A name server that does not answer keeps nobody from giving up.
func TestNameServerSilent(t *testing.T) {
	asked := make(chan struct{}, 100)
	old := net.DefaultResolver
	defer func() { net.DefaultResolver = old }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	h, err := quorum.New(rendezvous.Spec{
		RunID: "job1", LocalWorldSize: 1, Endpoint: "a.muster.invalid,b.muster.invalid,c.muster.invalid", MinNodes: 1, MaxNodes: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Shutdown(t.Context())
	if len(asked) > 0 {
		t.Error("New asks for names")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("SIGTERM")
	go func() { <-asked; cancel(why) }()
	if _, err := h.Next(ctx); err == nil {
		t.Error("Next returns without an error")
	}
}
