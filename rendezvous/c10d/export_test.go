package c10d

import (
	"context"
	"net"
	"strconv"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// Address is where an agent that may be elected has its server.
func Address(h rendezvous.Handler) string {
	m := h.(*many)
	return net.JoinHostPort(m.node.Addr, strconv.Itoa(m.server.Port()))
}

// Published is the address of the workers that a store has of a round before the given one.
func Published(ctx context.Context, s store.Store, round int) (addr string, port int, ok bool) {
	h := &many{cfg: Config{RunID: "job1"}, agents: s}
	return h.published(ctx, round, func(string) bool { return true })
}
