// Package static is the rendezvous backend of the same name: rank and size are
// given, and the store at the endpoint, which rank 0 has, serves agents and workers
// alike. Every round finds it empty of workers' keys.
//
// On many hosts agents are told what becomes of the others, as with c10d, if all of
// them are ours.
package static

import (
	"fmt"

	"github.com/muster-run/muster/internal/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/node"
	"github.com/muster-run/muster/store/tcpstore"
)

// Config says where one job meets.
type Config struct {
	rendezvous.Spec
	// Endpoint is host:port, verbatim MASTER_ADDR and MASTER_PORT.
	Endpoint string
	// NodeRank is this node's rank, 0 … MaxNodes-1.
	NodeRank int
	// MaxNodes is the number of nodes. Default 1.
	MaxNodes int
	// Conns bounds the connections to the stores that this agent holds; nil: nothing does.
	Conns *tcpstore.Limit
}

// New checks the configuration. It opens nothing; Next does.
func New(cfg Config) (rendezvous.Handler, error) {
	host, port, err := hostport.Split(cfg.Endpoint, -1)
	if err != nil {
		return nil, err
	}
	if port < 0 {
		return nil, fmt.Errorf("port is missing in endpoint: %s. Try to specify --master-port", cfg.Endpoint)
	}
	if cfg.NodeRank < 0 || cfg.NodeRank >= max(cfg.MaxNodes, 1) {
		return nil, fmt.Errorf("node rank %d: want 0 to %d", cfg.NodeRank, max(cfg.MaxNodes, 1)-1)
	}
	n := node.Config{Spec: cfg.Spec, Backend: "static", MaxNodes: cfg.MaxNodes, Conns: cfg.Conns}
	if cfg.MaxNodes <= 1 {
		return node.AloneShared(n, host, port)
	}
	return node.Ranked(n, cfg.NodeRank, host, port)
}
