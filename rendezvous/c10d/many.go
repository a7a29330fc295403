package c10d

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/room"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// sessionName is what a server of ours calls its rendezvous.
const sessionName = "rendezvous"

// handlers counts the handlers of this process: a node's local ID.
var handlers atomic.Int64

// many is the rendezvous of a job on several hosts.
type many struct {
	cfg    Config
	log    *slog.Logger
	guard  tcpstore.Guard // of the agents' store
	host   string
	port   int
	node   rendezvous.Node
	reach  string // this host's address on the way to an elected agent, if not node's
	master master
	agents store.Store
	server *tcpstore.Server // where this process hosts it
	client *tcpstore.Client // where another one does

	election Election // where there is one
	reigning sync.WaitGroup
	abdicate func()
	last     *room.Place

	changes chan rendezvous.Change // of the last round
	stop    func()                 // stops the watcher of the last round

	mu      sync.Mutex // guards the rest
	carrier carrier
	closed  bool
	rooms   *room.Server // what this process holds
	term    int64        // since when, if it was elected
}

// A carrier is a way to take part. Its methods are called by one goroutine at a
// time.
type carrier interface {
	// meet leaves the round that the node is in, joins the next one and returns
	// when the node has its place and knows where the workers meet.
	meet(ctx context.Context, deadline time.Time) (p place, addr string, port int, err error)
	// watch delivers what happens to the round until ctx ends or deliver
	// returns false.
	watch(ctx context.Context, round int, deliver func(rendezvous.Change) bool)
	// end makes this node leave, or closes the rendezvous for all.
	end(ctx context.Context, all bool) error
	close()
	offset() time.Duration
}

// place is where this node stands in a complete round.
type place struct {
	round, rank, size int
	job               int // its first round
	ranks             *rendezvous.Ranks
	foreign           bool           // nodes that are not ours may take part
	reached           string         // rank 0: its address in the eyes of other nodes, if known
	hosts             []netip.Prefix // rank 0: whence the workers come, if that is known for sure
}

func newMany(cfg Config, guard tcpstore.Guard, host string, port int) (*many, error) {
	if cfg.MinNodes < 1 || cfg.MaxNodes < cfg.MinNodes || cfg.LocalWorldSize < 1 {
		return nil, fmt.Errorf("rendezvous: %d to %d nodes with %d workers here", cfg.MinNodes, cfg.MaxNodes, cfg.LocalWorldSize)
	}
	if port == 0 && cfg.Elect == nil {
		return nil, fmt.Errorf("c10d rendezvous: the endpoint %q has port 0, which the other nodes cannot know; name one, for example %s", cfg.Endpoint, net.JoinHostPort(host, strconv.Itoa(DefaultPort)))
	}
	return &many{cfg: cfg, log: cfg.Logger, guard: guard, host: host, port: port}, nil
}

func (h *many) Backend() string {
	switch {
	case h.cfg.NodeRank != nil:
		return "static"
	case h.cfg.Elect != nil:
		return h.cfg.Name
	}
	return "c10d"
}

// masterAddr is where workers find a store that this host has: at the address by
// which the others have reached it, if they have and it is known.
func (h *many) masterAddr(reached string) string {
	switch {
	case h.cfg.NodeRank != nil:
		return h.host
	case h.cfg.LocalAddr != "" || h.cfg.Settings.Bind != "":
		return h.node.Addr
	case reached != "" && isOwn(h.node.Addr): // not one that is translated on its way here
		return reached
	case h.reach != "":
		return h.reach
	}
	return h.node.Addr
}

func (h *many) RunID() string                     { return h.cfg.RunID }
func (h *many) UseAgentStore() bool               { return !h.cfg.PrivateStore || h.cfg.NodeRank != nil }
func (h *many) Changes() <-chan rendezvous.Change { return h.changes }

func (h *many) endpoint() string {
	if h.cfg.Elect != nil {
		return strings.Join(h.cfg.Electorate, ",")
	}
	return net.JoinHostPort(h.host, strconv.Itoa(h.port))
}

func (h *many) connectionError(err error) error {
	return &rendezvous.ConnectionError{Backend: h.Backend(), Endpoint: h.endpoint(), Err: err}
}

// Next implements rendezvous.Handler.
func (h *many) Next(ctx context.Context) (*rendezvous.Info, error) {
	h.stopWatching()
	deadline := time.Now().Add(h.cfg.Settings.Join)
	c, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	p, addr, port, err := c.meet(ctx, deadline)
	for h.replaceable(ctx, c, err) {
		if c, err = h.open(ctx); err == nil {
			p, addr, port, err = c.meet(ctx, deadline)
		}
	}
	h.cfg.tellWaiting(rendezvous.Waiting{})
	if err == nil {
		err = h.checkSize(p)
	}
	if err != nil {
		return nil, err
	}
	h.last = &room.Place{Round: p.round, Rank: p.rank, WorldSize: p.size}
	h.startWatching(c, p.round)
	return &rendezvous.Info{
		Round: p.round, Rank: p.rank, WorldSize: p.size,
		Store:      h.roundStore(p.round),
		JobStore:   h.storeOfJob(p.job),
		Serves:     h.serves(c),
		MasterAddr: addr, MasterPort: port,
		Ranks: p.ranks, ClockOffset: c.offset(),
	}, nil
}

// serves says whether the others need this process. Where nobody would say that they
// are gone it does not wait for them.
func (h *many) serves(c carrier) bool {
	if _, deaf := c.(*plain); deaf {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rooms != nil || h.master.server != nil
}

// checkSize finds out that another agent, for which other rules hold, has completed
// the round. Where the rendezvous is ours it has compared --nnodes before.
func (h *many) checkSize(p place) error {
	if p.size >= h.cfg.MinNodes && p.size <= h.cfg.MaxNodes {
		return nil
	}
	nnodes := strconv.Itoa(h.cfg.MinNodes)
	if h.cfg.MaxNodes != h.cfg.MinNodes {
		nnodes += ":" + strconv.Itoa(h.cfg.MaxNodes)
	}
	return fmt.Errorf("rendezvous of run %q: round %d has %d nodes, but --nnodes is %s here: an agent with another --nnodes takes part; give all hosts the same",
		h.cfg.RunID, p.round, p.size, nnodes)
}

// replaceable says whether a carrier has been lost to an error and another can be
// found, and if so lets go of it: that of an agent which was elected, or one whose room
// has dropped this node, and is there.
func (h *many) replaceable(ctx context.Context, c carrier, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	if _, lost := errors.AsType[*rendezvous.ConnectionError](err); !lost {
		return false
	}
	switch c := c.(type) {
	case *led:
	case *held:
		if !c.evicted || h.server != nil || h.cfg.NodeRank != nil {
			return false
		}
		h.log.Info("connecting again to the rendezvous, which has not heard of this host for too long", "run_id", h.cfg.RunID)
	default:
		return false
	}
	h.unfollow(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.carrier = nil
	return !h.closed
}

// roundStore is the store of one round's agents.
func (h *many) roundStore(round int) store.Store {
	if _, ok := h.carrier.(*plain); ok {
		return store.Prefix(h.cfg.RunID, h.agents)
	}
	return store.Prefix(fmt.Sprintf("torch.rendezvous.%s.%d", h.cfg.RunID, round), h.agents)
}

// storeOfJob is the store of a job, by its first round: the ID may have had others.
func (h *many) storeOfJob(first int) store.Store {
	if first == 0 {
		return h.jobStore()
	}
	return store.Prefix(fmt.Sprintf("muster.%s.%d", h.cfg.RunID, first), h.agents)
}

// open connects to the rendezvous the first time, or makes it.
func (h *many) open(ctx context.Context) (carrier, error) {
	h.mu.Lock()
	c, closed := h.carrier, h.closed
	h.mu.Unlock()
	switch {
	case closed:
		return nil, rendezvous.ErrClosed
	case c != nil:
		return c, nil
	}
	connect := h.connect
	switch {
	case h.cfg.NodeRank != nil:
		connect = h.static
	case h.cfg.Elect != nil:
		connect = h.elected
	}
	c, err := connect(ctx)
	switch {
	case err == nil:
	case errors.Is(err, rendezvous.ErrClosed):
		return nil, err
	default:
		return nil, h.connectionError(err)
	}
	h.mu.Lock()
	h.carrier = c
	h.mu.Unlock()
	return c, nil
}

// connect finds or makes the rendezvous and sets agents and node.
func (h *many) connect(ctx context.Context) (carrier, error) {
	hosts := h.cfg.Settings.IsHost
	if hosts != nil && *hosts || hosts == nil && rendezvous.IsThisHost(ctx, h.host) {
		err := h.listen()
		if err == nil {
			h.setNode(hostAddr(ctx, h.host))
			conn, err := h.server.ServeSession(sessionName)
			if err != nil {
				return nil, err
			}
			return h.greet(ctx, conn)
		}
		if hosts != nil || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
		// Another process of this host has the port: an agent of the same job.
	}
	cfg := tcpstore.ClientConfig{Addr: h.endpoint(), Timeout: h.cfg.Settings.Join, KeepAlive: h.cfg.Settings.KeepAliveLimit(), Guard: h.guard, OnRetry: h.tellRetry(), Logger: h.log}
	defer h.cfg.tellWaiting(rendezvous.Waiting{})
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	if err != nil && !errors.Is(err, tcpstore.ErrNoSession) {
		return nil, err
	}
	cfg.Timeout = min(h.cfg.Settings.ReadTimeout, h.cfg.Settings.Join)
	client, dialErr := tcpstore.Dial(ctx, cfg)
	if dialErr != nil {
		if conn != nil {
			conn.Close()
		}
		return nil, dialErr
	}
	h.client, h.agents = client, client
	h.setNode(h.ownAddr(ctx, client.Local()))
	if err != nil {
		h.log.Info("the rendezvous is held by PyTorch; looking at it twice a second", "run_id", h.cfg.RunID, "endpoint", h.endpoint())
		return newShared(ctx, h)
	}
	// Whether the server is still the same is for the session to say.
	client.Last()
	return h.greet(ctx, conn)
}

// tellRetry returns what tells the user now and then that the endpoint cannot be
// reached yet.
func (h *many) tellRetry() func(*tcpstore.ConnectError, time.Duration) {
	next := time.Now().Add(statusInterval)
	return func(err *tcpstore.ConnectError, left time.Duration) {
		if now := time.Now(); !now.Before(next) {
			next = now.Add(statusInterval)
			h.cfg.tellWaiting(rendezvous.Waiting{Note: fmt.Sprintf("the rendezvous cannot be reached yet: %v; giving up in %v", err, left.Round(time.Second))})
		}
	}
}

// greet begins a session, which ends conn.
func (h *many) greet(ctx context.Context, conn net.Conn) (*held, error) {
	settings := &h.cfg.Settings
	session, err := room.Greet(ctx, conn, &room.Message{
		RunID: h.cfg.RunID, Node: &h.node, Host: h.cfg.Host,
		MinNodes: h.cfg.MinNodes, MaxNodes: h.cfg.MaxNodes, LastCall: settings.LastCall,
		KeepAlive: settings.KeepAliveInterval, KeepAliveLimit: settings.KeepAliveLimit(),
		Role: h.cfg.Role, LocalWorldSize: h.cfg.LocalWorldSize, Last: h.last,
	})
	if err != nil {
		return nil, err
	}
	return &held{h: h, session: session}, nil
}

// listen hosts the rendezvous at the endpoint.
func (h *many) listen() error {
	cfg := h.cfg.ServerConfig(endpointHost(h.host), h.port)
	cfg.KeepAlive, cfg.Guard = h.cfg.Settings.KeepAliveLimit(), h.guard
	cfg.Prepare = func(s *tcpstore.Server) { h.rooms = Serve(s, h.log) }
	server, err := tcpstore.Listen(cfg)
	if err != nil {
		return err
	}
	h.server, h.agents = server, server.Store()
	h.port = server.Port()
	return nil
}

// Serve makes a server hold rendezvous, for all run IDs that it is asked for. It
// is called in the server's Prepare.
func Serve(server *tcpstore.Server, log *slog.Logger) *room.Server {
	rooms := room.NewServer(room.ServerConfig{Mirrors: server, Logger: log})
	server.HandleSession(sessionName, rooms.Serve)
	return rooms
}

// setNode says who this node is; addr is its address unless --local-addr names one.
func (h *many) setNode(addr string) {
	if h.cfg.LocalAddr != "" {
		addr = h.cfg.LocalAddr
	}
	h.node = rendezvous.Node{Addr: addr, PID: os.Getpid(), LocalID: int(handlers.Add(1) - 1)}
}

// lost is the error of a rendezvous that was there and is not any more.
func (h *many) lost(err error) error {
	if h.cfg.Elect != nil {
		return h.connectionError(fmt.Errorf("lost the agent that held the rendezvous: %w", err))
	}
	return h.connectionError(fmt.Errorf("lost: %w; the agent or the host that holds the rendezvous has ended or cannot be reached, and a %s job cannot outlive it", err, h.Backend()))
}

func (h *many) startWatching(c carrier, round int) {
	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan rendezvous.Change, 64)
	var watching sync.WaitGroup
	h.changes = changes
	h.stop = func() { cancel(); watching.Wait() }
	watching.Go(func() {
		c.watch(ctx, round, func(change rendezvous.Change) bool {
			select {
			case changes <- change:
				if change.Err != nil && h.client != nil {
					// Calls would wait for a host that does not answer, or find another server there.
					h.client.Close()
				}
				return true
			case <-ctx.Done():
				return false
			}
		})
	})
}

func (h *many) stopWatching() {
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// Leave implements rendezvous.Handler. On the node that holds the rendezvous it
// ends it for all.
func (h *many) Leave(ctx context.Context) error { return h.end(ctx, false) }

// Shutdown implements rendezvous.Handler. A node that holds the rendezvous waits
// until the others have been told.
func (h *many) Shutdown(ctx context.Context) error { return h.end(ctx, true) }

func (h *many) end(ctx context.Context, all bool) error {
	h.stopWatching()
	h.mu.Lock()
	c, closed := h.carrier, h.closed
	h.closed = true
	h.mu.Unlock()
	if closed {
		return nil
	}
	var err error
	if c != nil {
		err = c.end(ctx, all)
		c.close()
	}
	h.master.close()
	if h.client != nil {
		h.client.Close()
	}
	if h.server != nil {
		h.mu.Lock()
		rooms := h.rooms
		h.mu.Unlock()
		if all && rooms != nil {
			rooms.Drain(ctx.Done(), h.cfg.RunID)
		}
		if rooms != nil {
			rooms.Close() // the others hear that this node leaves, not that it is lost
		}
		err = errors.Join(err, h.server.Close())
	}
	if h.election != nil {
		err = errors.Join(err, h.election.Close(ctx, all))
		h.abdicate()
	}
	return err
}
