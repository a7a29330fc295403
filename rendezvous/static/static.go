// Package static is the rendezvous backend of the same name: rank and size are
// given, and the store at the endpoint, which rank 0 has, serves agents and workers
// alike. Every round finds it empty of workers' keys.
//
// On many hosts agents are told what becomes of the others, as with c10d, if all of
// them are ours.
package static

import (
	"fmt"

	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/node"
)

// New checks what it is given. It opens nothing; Next does. The endpoint is host:port,
// verbatim MASTER_ADDR and MASTER_PORT.
func New(spec rendezvous.Spec) (rendezvous.Handler, error) {
	host, port, err := hostport.Split(spec.Endpoint, -1)
	if err != nil {
		return nil, err
	}
	if port < 0 {
		return nil, fmt.Errorf("port is missing in endpoint: %s; give HOST:PORT", spec.Endpoint)
	}
	if spec.NodeRank < 0 || spec.NodeRank >= max(spec.MaxNodes, 1) {
		return nil, fmt.Errorf("node rank %d: want 0 to %d", spec.NodeRank, max(spec.MaxNodes, 1)-1)
	}
	spec.PrivateStore = false // the store is at the endpoint, on rank 0's host
	if spec.MaxNodes <= 1 {
		return node.AloneShared("static", spec, host, port)
	}
	return node.Ranked("static", spec, host, port)
}
