// Package static is the rendezvous backend of the same name: rank and size are
// given, and the store at the endpoint, which rank 0 has, serves agents and workers
// alike. Every round finds it empty of workers' keys.
//
// On many hosts it is a c10d rendezvous with fixed ranks, if all agents are ours.
package static

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// Config says where one job meets.
type Config struct {
	// RunID is the prefix of the agents' keys.
	RunID string
	// Endpoint is host:port, verbatim MASTER_ADDR and MASTER_PORT.
	Endpoint string
	// NodeRank is this node's rank, 0 … MaxNodes-1.
	NodeRank int
	// MaxNodes is the number of nodes. Default 1. The fields below count only
	// where there are more; see c10d.Config.
	MaxNodes       int
	Role           string
	LocalWorldSize int
	Host           string
	OnWaiting      func(rendezvous.Waiting)
	Settings       rendezvous.Settings
	Conns          *tcpstore.Limit
	// Logger gets what the store has to say. Default slog.Default().
	Logger *slog.Logger
}

// A handler is the static rendezvous of one job on one host.
// Source: StaticTCPRendezvous in static_tcp_rendezvous.py.
type handler struct {
	cfg  c10d.Config
	host string
	port int

	mu     sync.Mutex // guards the rest
	server *tcpstore.Server
	round  int
	closed bool
}

// New checks the configuration. It opens nothing; Next does.
func New(cfg Config) (rendezvous.Handler, error) {
	host, port, err := rendezvous.SplitEndpoint(cfg.Endpoint, -1)
	if err != nil {
		return nil, err
	}
	if port < 0 {
		return nil, fmt.Errorf("port is missing in endpoint: %s. Try to specify --master-port", cfg.Endpoint)
	}
	if cfg.NodeRank < 0 || cfg.NodeRank >= max(cfg.MaxNodes, 1) {
		return nil, fmt.Errorf("node rank %d: want 0 to %d", cfg.NodeRank, max(cfg.MaxNodes, 1)-1)
	}
	meet := c10d.Config{
		RunID: cfg.RunID, Endpoint: cfg.Endpoint, NodeRank: &cfg.NodeRank, MinNodes: cfg.MaxNodes, MaxNodes: cfg.MaxNodes,
		Role: cfg.Role, LocalWorldSize: cfg.LocalWorldSize, Host: cfg.Host, OnWaiting: cfg.OnWaiting, Settings: cfg.Settings,
		Conns: cfg.Conns, Logger: cfg.Logger,
	}
	if cfg.MaxNodes > 1 {
		return c10d.New(meet)
	}
	return &handler{cfg: meet, host: host, port: port}, nil
}

// Backend returns "static".
func (h *handler) Backend() string { return "static" }

// RunID returns the job's run ID.
func (h *handler) RunID() string { return h.cfg.RunID }

// UseAgentStore returns true.
func (h *handler) UseAgentStore() bool { return true }

// Changes returns nil: the set of nodes is fixed.
func (h *handler) Changes() <-chan rendezvous.Change { return nil }

// Leave releases what the handler holds: the job has no other node.
func (h *handler) Leave(ctx context.Context) error { return h.Shutdown(ctx) }

// Next starts the store the first time and empties it afterwards, so that the
// workers of a new round never read what those of an old one left.
func (h *handler) Next(ctx context.Context) (*rendezvous.Info, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, rendezvous.ErrClosed
	}
	if h.server == nil {
		server, err := tcpstore.Listen(h.cfg.OneHost(h.host, h.port))
		if err != nil {
			return nil, &rendezvous.ConnectionError{Backend: "static", Endpoint: h.cfg.Endpoint, Err: err}
		}
		h.server = server
	} else {
		h.server.Reset()
		h.round++
	}
	agents := store.Prefix(h.cfg.RunID, h.server.Store())
	if s := &h.cfg.Settings; s.Token != "" || s.TokenFile != "" || s.CACert != "" {
		agents = store.NewMemory() // whoever reaches the workers' store can write there
	}
	return &rendezvous.Info{
		Round:      h.round,
		WorldSize:  1,
		Store:      agents,
		JobStore:   store.NewMemory(),
		MasterAddr: h.host,
		MasterPort: h.server.Port(),
	}, nil
}

// Shutdown closes the store.
func (h *handler) Shutdown(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	if h.server == nil {
		return nil
	}
	if err := h.server.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
