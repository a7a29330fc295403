package node

import (
	"context"
	"net"
	"strconv"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// ElectedBy is Elected with an election of the test's own. needs is what that waits for.
func ElectedBy(cfg rendezvous.Spec, elect func(ctx context.Context, addr string) (Election, error), needs string) (rendezvous.Handler, error) {
	e := &elected{electorate: []string{"127.0.0.1:1"}, elect: elect}
	e.needs.Store(&needs)
	return e.node("etcd", cfg)
}

// Holds reports whether a node holds the rendezvous.
func Holds(h rendezvous.Handler) bool { return h.(*Node).endpoint.holds() }

// Address is where an agent that may be elected has its server.
func Address(h rendezvous.Handler) string {
	e := h.(*Node).endpoint.(*elected)
	return net.JoinHostPort(e.n.link.me.Addr, strconv.Itoa(e.store.Port()))
}

// Published is the address of the workers that a store has of a round before the given one.
func Published(ctx context.Context, s store.Store, round int) (addr string, port int, ok bool) {
	n := &Node{cfg: rendezvous.Spec{RunID: "job1"}, link: link{agents: s}}
	return n.published(ctx, round, func(string) bool { return true })
}

// ServerConfig is that of a store that a host serves.
func ServerConfig(cfg rendezvous.Spec) tcpstore.ServerConfig {
	return (&Node{cfg: cfg}).serverConfig("", 1)
}

// CloseWorkersStore has a node make its next workers' store where it cannot.
func CloseWorkersStore(h rendezvous.Handler) error {
	n := h.(*Node)
	n.cfg.Settings.Bind = "192.0.2.1"
	return n.workers.close()
}
