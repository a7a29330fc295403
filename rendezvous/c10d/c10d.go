// Package c10d is the rendezvous backend of the same name: agents meet at a
// TCPStore at the endpoint.
//
// A job on one host needs nobody to meet. Where the endpoint has a port that
// others can know its agent opens it all the same; port 0 keeps the agents' store
// in memory.
//
// For a job on many hosts there are two carriers. A server of ours, in the agent
// of the endpoint's host or a `muster store`, holds the rendezvous itself (package
// room): agents have a session with it and are told what happens. A server of
// PyTorch's only stores the state, as one value that all agents change by
// compare-and-set and look at again and again. PyTorch's agents can take part
// either way, since a room shows and takes that value too.
//
// Keys are TorchElastic's; what our agents tell each other beside them begins
// with "muster".
package c10d

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"syscall"

	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// DefaultPort is the endpoint's port when it names none.
// Source: DEFAULT_PORT in c10d_rendezvous_backend.py.
const DefaultPort = 29400

// Config says where one job meets.
type Config struct {
	// RunID names the job; it must not be empty.
	RunID string
	// Endpoint is host[:port] of the store; empty means localhost. Port 0 keeps
	// the agents' store in memory.
	Endpoint string
	// LocalAddr is MASTER_ADDR, this host's address in the eyes of the
	// workers. Empty means the loopback address, on which the workers' store
	// then listens alone; any other address makes it listen on all.
	LocalAddr string
	// PrivateStore makes worker rank 0 host the workers' store on a port that
	// is held free for it (TORCH_DISABLE_SHARE_RDZV_TCP_STORE).
	PrivateStore bool
	// IdenticalWorkers says that agents do not exchange their ranks before they
	// start workers (TORCH_ELASTIC_WORKER_IDENTICAL).
	IdenticalWorkers bool
	// MinNodes and MaxNodes are how many nodes the job may have. Default 1.
	MinNodes, MaxNodes int
	// NodeRank, if set, makes this the static backend of a job on MaxNodes nodes:
	// the node has this rank, rank 0 holds the store at the endpoint, and workers
	// meet there too. See package static.
	NodeRank *int
	// Elect, if set, makes this a backend of another name, Name: an election says
	// which agent holds the rendezvous, and Endpoint is not used. It is called
	// once, with the address of this agent's server. Electorate are addresses by
	// which the node finds out its own.
	Elect      func(ctx context.Context, addr string) (Election, error)
	Name       string
	Electorate []string
	// Lacking says for what the election waits at the moment, "" if it does not. It
	// completes errors, and may be nil.
	Lacking func() string
	// Role and LocalWorldSize are those of this node's workers, and Host is its
	// name, for messages.
	Role           string
	LocalWorldSize int
	Host           string
	// OnWaiting is called every few seconds while Next waits for other nodes, and
	// with a zero Waiting when that is over. It may be nil.
	OnWaiting func(rendezvous.Waiting)
	// Settings are the values of --rdzv-conf.
	Settings rendezvous.Settings
	// Conns bounds the connections to the stores that this agent holds; nil: nothing does.
	Conns *tcpstore.Limit
	// Logger gets what the stores have to say. Default slog.Default().
	Logger *slog.Logger
}

func (cfg *Config) tellWaiting(w rendezvous.Waiting) {
	if cfg.OnWaiting != nil {
		cfg.OnWaiting(w)
	}
}

// lacking is Lacking, if there is one.
func (cfg *Config) lacking() string {
	if cfg.Lacking == nil {
		return ""
	}
	return cfg.Lacking()
}

// alone is the rendezvous of a job on one host.
type alone struct {
	cfg   Config
	guard tcpstore.Guard // of the agents' store
	host  string
	port  int
	addr  string // MASTER_ADDR

	mu     sync.Mutex // guards the rest
	agents store.Store
	server *tcpstore.Server // the agents', where this process hosts it
	client *tcpstore.Client // the agents', where another process on this host does
	round  int
	end    func() error // ends the workers' store of the last round
	closed bool
}

// New checks the configuration. It opens nothing; Next does.
func New(cfg Config) (rendezvous.Handler, error) {
	if cfg.RunID == "" {
		return nil, errors.New("c10d rendezvous: the run ID is empty; give --rdzv-id a value")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	guard, err := newGuard(&cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Elect != nil {
		return newMany(cfg, guard, "", 0)
	}
	host, port, err := rendezvous.SplitEndpoint(cfg.Endpoint, DefaultPort)
	if err != nil {
		return nil, err
	}
	if cfg.Settings.StoreType == "file" {
		return nil, errors.New("rendezvous configuration store_type=file: muster keeps the agents' store in memory or in a TCPStore; leave store_type out")
	}
	if cfg.MaxNodes > 1 {
		return newMany(cfg, guard, host, port)
	}
	h := &alone{cfg: cfg, guard: guard, host: host, port: port, addr: "127.0.0.1"}
	if cfg.LocalAddr != "" {
		h.addr = cfg.LocalAddr
	}
	return h, nil
}

// newGuard returns what guards the agents' store, nil if nothing does.
func newGuard(cfg *Config) (tcpstore.Guard, error) {
	s := &cfg.Settings
	want := auth.Config{Token: s.Token, TokenFile: s.TokenFile, CACert: s.CACert, Cert: s.Cert, Key: s.Key}
	if cfg.Name == "etcd" && (s.CACert == "" || s.Cert == "") {
		want.CACert, want.Cert, want.Key = "", "", "" // they say only how to know etcd, or how to be known there
	}
	guard, err := auth.New(want)
	if guard == nil || err != nil {
		return nil, err
	}
	return guard, nil
}

// Backend returns "c10d".
func (h *alone) Backend() string { return "c10d" }

// RunID returns the job's run ID.
func (h *alone) RunID() string { return h.cfg.RunID }

// UseAgentStore says whether the agent hosts the workers' store.
func (h *alone) UseAgentStore() bool { return !h.cfg.PrivateStore }

// Changes returns nil: a job on one host has one node.
func (h *alone) Changes() <-chan rendezvous.Change { return nil }

// Leave releases what the handler holds: the job has no other node.
func (h *alone) Leave(ctx context.Context) error { return h.Shutdown(ctx) }

// Next opens the agents' store the first time, ends the workers' store of the
// last round and starts a new one.
func (h *alone) Next(ctx context.Context) (*rendezvous.Info, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, rendezvous.ErrClosed
	}
	if h.agents == nil {
		if err := h.open(ctx); err != nil {
			return nil, &rendezvous.ConnectionError{Backend: "c10d", Endpoint: net.JoinHostPort(h.host, strconv.Itoa(h.port)), Err: err}
		}
	} else {
		h.round++
	}
	if err := h.endWorkersStore(); err != nil {
		return nil, err
	}
	port, err := h.startWorkersStore()
	if err != nil {
		return nil, &rendezvous.ConnectionError{Backend: "c10d", Endpoint: h.addr, Err: fmt.Errorf("start the workers' store: %w", err)}
	}
	info := &rendezvous.Info{
		Round:      h.round,
		WorldSize:  1,
		Store:      store.Prefix(fmt.Sprintf("torch.rendezvous.%s.%d", h.cfg.RunID, h.round), h.agents),
		JobStore:   store.Prefix("muster."+h.cfg.RunID, h.agents),
		MasterAddr: h.addr,
		MasterPort: port,
	}
	err = errors.Join(
		info.Store.Set(ctx, "MASTER_ADDR", []byte(info.MasterAddr)),
		info.Store.Set(ctx, "MASTER_PORT", []byte(strconv.Itoa(port))))
	if err != nil {
		return nil, err
	}
	return info, nil
}

// open makes the agents' store: in memory for port 0, otherwise at the
// endpoint, hosted here or, where the port is taken, by the TCPStore that has it.
func (h *alone) open(ctx context.Context) error {
	if h.port == 0 {
		h.agents = store.NewMemory()
		return nil
	}
	host := h.cfg.Settings.IsHost
	if host != nil && !*host {
		return h.dial(ctx)
	}
	if host == nil && !rendezvous.IsThisHost(ctx, h.host) {
		return h.dial(ctx)
	}
	serve := h.cfg.ServerConfig(endpointHost(h.host), h.port)
	serve.Guard = h.guard
	server, err := tcpstore.Listen(serve)
	if err == nil {
		h.server, h.agents = server, server.Store()
		return nil
	}
	if host == nil && errors.Is(err, syscall.EADDRINUSE) {
		// Another agent of this machine may host the store for both.
		if h.dial(ctx) == nil {
			return nil
		}
	}
	return err
}

func (h *alone) dial(ctx context.Context) error {
	client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{
		Addr:    net.JoinHostPort(h.host, strconv.Itoa(h.port)),
		Timeout: h.cfg.Settings.ReadTimeout,
		Guard:   h.guard,
		Logger:  h.cfg.Logger,
	})
	if err != nil {
		return err
	}
	h.client, h.agents = client, client
	return nil
}

// ServerConfig is that of a store that this host holds, with what guards its port. It
// listens on Settings.Bind; without that on the address of host alone if that is a loopback
// one, else on all, as PyTorch's does. In a job on one host a loopback address comes first.
func (cfg *Config) ServerConfig(host string, port int) tcpstore.ServerConfig {
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() || cfg.MaxNodes > 1 && cfg.Settings.Bind != "" {
		host = cfg.Settings.Bind
	}
	c := tcpstore.ServerConfig{Addr: net.JoinHostPort(host, strconv.Itoa(port)), Allow: cfg.Settings.Allow, Limit: cfg.Conns, Logger: cfg.Logger}
	if len(c.Allow) > 0 {
		c.Allow = append(ThisHost(), c.Allow...)
	}
	return c
}

// endpointHost is where an endpoint's server listens: at one of localhost's addresses alone.
func endpointHost(host string) string {
	if host == "localhost" {
		return "127.0.0.1"
	}
	return host
}

// startWorkersStore returns the port at which the workers of this round meet
// and sets end.
func (h *alone) startWorkersStore() (port int, err error) {
	if h.cfg.PrivateStore {
		reserved, err := rendezvous.ReservePort()
		if err != nil {
			return 0, err
		}
		h.end = reserved.Close
		return reserved.Port, nil
	}
	server, err := tcpstore.Listen(h.cfg.OneHost(h.addr, 0))
	if err != nil {
		return 0, err
	}
	h.end = server.Close
	return server.Port(), nil
}

func (h *alone) endWorkersStore() error {
	if h.end == nil {
		return nil
	}
	err := h.end()
	h.end = nil
	return err
}

// Shutdown closes the stores.
func (h *alone) Shutdown(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	err := h.endWorkersStore()
	if h.server != nil {
		err = errors.Join(err, h.server.Close())
	}
	if h.client != nil {
		err = errors.Join(err, h.client.Close())
	}
	return err
}
