package c10d

import (
	"net"
	"strconv"

	"github.com/muster-run/muster/rendezvous"
)

// Address is where an agent that may be elected has its server.
func Address(h rendezvous.Handler) string {
	m := h.(*many)
	return net.JoinHostPort(m.node.Addr, strconv.Itoa(m.server.Port()))
}
