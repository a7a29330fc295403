package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// sessionName is what a muster server calls its rendezvous.
const sessionName = "rendezvous"

// Serve makes a server hold rendezvous, for all run IDs that it is asked for. It
// is called in the server's Prepare. endsWith is as for server.EndsWith, "" for none.
func Serve(s *tcpstore.Server, log *slog.Logger, endsWith string) *server.Server {
	rdzv := server.New(s, log)
	rdzv.EndsWith(endsWith)
	rdzv.LimitCalls(s.MaxConns())
	s.HandleSession(callName, rdzv.ServeCall)
	s.HandleSession(storeName, rdzv.ServeStore)
	s.HandleSession(sessionName, rdzv.Serve)
	return rdzv
}

// fixed is what endpoints with a host and a port have in common.
type fixed struct {
	n    *Node
	host string
	port int

	serves bool             // this process does, which sets store
	store  *tcpstore.Server // at the endpoint
	rdzv   *server.Server   // in store; nil: there is nobody to meet, as in a job on one host
}

func (e *fixed) String() string  { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }
func (e *fixed) lacking() string { return "" }
func (e *fixed) holds() bool     { return e.serves }

func (e *fixed) lost(err error) error {
	return lostError{e.n.connectionError(fmt.Errorf(
		"lost: %w; the agent or the host that holds the rendezvous has ended or cannot be reached, and a %s job cannot outlive it",
		err, e.n.backend))}
}

func (e *fixed) loss(err error) rendezvous.Change {
	return rendezvous.Change{Kind: rendezvous.Disconnected, Rank: -1, Err: e.lost(err)}
}

// listen serves a store at the endpoint.
func (e *fixed) listen(cfg tcpstore.ServerConfig) error {
	s, err := tcpstore.Listen(cfg)
	if err != nil {
		return err
	}
	e.serves, e.store, e.port = true, s, s.Port()
	e.n.link.agents = s.Store()
	return nil
}

// hold serves the agents' store at the endpoint, and holds the rendezvous.
func (e *fixed) hold() error {
	cfg := e.n.agentsConfig(endpointHost(e.host), e.port)
	cfg.Prepare = func(s *tcpstore.Server) { e.rdzv = Serve(s, e.n.log, e.n.cfg.RunID) }
	return e.listen(cfg)
}

// own begins this node's session with the rendezvous that this process holds.
func (e *fixed) own(ctx context.Context) (protocol, error) {
	return e.n.greetOwn(ctx, e.store)
}

// greetOwn is greet where this process holds the rendezvous.
func (n *Node) greetOwn(ctx context.Context, s *tcpstore.Server) (*session, error) {
	dial := func(_ context.Context, name string) (net.Conn, error) { return s.ServeSession(name) }
	conn, err := dial(ctx, sessionName)
	if err != nil {
		return nil, err
	}
	return n.greet(ctx, conn, dial)
}

// dialerTo leads to the server elsewhere that conn is a connection to, whatever its name leads to by then.
func dialerTo(conn net.Conn, cfg tcpstore.ClientConfig) dialer {
	cfg.Addr = conn.RemoteAddr().String()
	cfg.OnRetry = nil // it is for Next
	return func(ctx context.Context, name string) (net.Conn, error) { return tcpstore.DialSession(ctx, cfg, name) }
}

func (e *fixed) clientConfig(timeout time.Duration) tcpstore.ClientConfig {
	return tcpstore.ClientConfig{
		Addr: e.String(), Timeout: timeout, KeepAlive: e.n.cfg.Settings.KeepAliveLimit(),
		Guard: e.n.guard, OnRetry: e.tellRetry(), Logger: e.n.log,
	}
}

// tellRetry returns what tells the user now and then that the endpoint cannot be
// reached yet.
func (e *fixed) tellRetry() func(*tcpstore.ConnectError, time.Duration) {
	next := time.Now().Add(waitingInterval)
	return func(err *tcpstore.ConnectError, left time.Duration) {
		if now := time.Now(); !now.Before(next) && left >= time.Second {
			next = now.Add(waitingInterval)
			e.n.cfg.OnWaiting(rendezvous.Waiting{Note: fmt.Sprintf("the rendezvous cannot be reached yet: %v; giving up in %v",
				err, left.Round(time.Second))})
		}
	}
}

func (e *fixed) close(ctx context.Context, all bool) error {
	if !e.serves {
		return nil
	}
	if e.rdzv != nil {
		e.n.letGo(ctx, e.rdzv, all)
	}
	return e.store.Close()
}

// open is the endpoint of a job whose first agent there serves, if it is on that host.
type open struct{ fixed }

// Open returns the node of a job of several that meets at a host and a port.
func Open(backend string, cfg rendezvous.Spec, host string, port int) (rendezvous.Handler, error) {
	n, err := ofMany(backend, cfg)
	if err != nil {
		return nil, err
	}
	n.endpoint = &open{fixed{n: n, host: host, port: port}}
	return n, nil
}

func (e *open) connect(ctx context.Context) (protocol, error) {
	defer e.n.cfg.OnWaiting(rendezvous.Waiting{})
	until := time.Now().Add(e.n.cfg.Settings.Join)
	p, err := e.find(ctx)
	for e.n.awaitsNext(ctx, err, until) {
		p, err = e.find(ctx)
	}
	return p, err
}

// nextJob is how often a node looks whether a job that is ending has gone.
const nextJob = 200 * time.Millisecond

// awaitsNext reports whether err says that a job of the same run ID is ending where this node's,
// which is another, is to meet, that this node is there already with a session which may be dead, or that
// rank 0 begins anew there. It waits a moment then.
func (n *Node) awaitsNext(ctx context.Context, err error, until time.Time) bool {
	refused, _ := errors.AsType[*server.RefusedError](err)
	taken, _ := errors.AsType[*portTakenError](err)
	why := "the job that had the run ID before has not ended yet on the host that holds its rendezvous"
	switch again := errors.Is(err, errBegunAgain); {
	case ctx.Err() != nil, time.Now().After(until),
		!again && taken == nil && (refused == nil || !refused.Taken && (!refused.Over || n.last != nil)):
		return false
	case again:
		return true
	case taken != nil:
		why = taken.Error()
	case refused.Taken:
		why = refused.Reason + "; it may have ended, and is asked"
	}
	left := time.Until(until).Round(time.Second)
	n.cfg.OnWaiting(rendezvous.Waiting{Note: fmt.Sprintf("%s; giving up in %v", why, left)})
	return sleep.For(ctx, nextJob) == nil
}

// A portTakenError says that another program of this host has the endpoint's port, and does not serve there:
// an agent may be about to, or to end.
type portTakenError struct {
	port      int
	err, dial error // why this process does not listen there, and what became of connecting
}

func (e *portTakenError) Unwrap() error { return e.err }

func (e *portTakenError) Error() string {
	return fmt.Sprintf("port %d is in use on this host by %s, and nothing answers there as a store: %v", e.port,
		hostport.Holder(os.DirFS("/"), e.port), e.dial)
}

func (e *open) find(ctx context.Context) (protocol, error) {
	n := e.n
	var taken error
	hosts := n.cfg.Settings.IsHost
	if hosts != nil && *hosts || hosts == nil && hostport.IsThisHost(ctx, e.host) {
		err := e.hold()
		if err == nil {
			n.setNode(hostAddr(ctx, e.host))
			return e.own(ctx)
		}
		if hosts != nil || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
		// Another process of this host has the port: an agent of the same job, or of one that ends.
		taken = err
	}
	cfg := e.clientConfig(min(cmp.Or(n.cfg.Settings.Connect, n.cfg.Settings.Join), n.cfg.Settings.Join))
	if taken != nil {
		cfg.Timeout = min(cfg.Timeout, waitingInterval)
	}
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	plain := errors.Is(err, tcpstore.ErrNoSession)
	if fault, ok := errors.AsType[*tcpstore.ConnectError](err); ok && taken != nil && errors.Is(err, syscall.ECONNREFUSED) {
		return nil, &portTakenError{e.port, taken, fault.Err}
	}
	if err != nil && !plain {
		return nil, err
	}
	cfg.Timeout = min(n.cfg.Settings.ReadTimeout, n.cfg.Settings.Join)
	client, err := n.dial(ctx, cfg)
	if err != nil {
		if !plain {
			conn.Close()
		}
		return nil, err
	}
	n.setNode(e.ownAddr(ctx, client.Local()))
	if plain {
		n.log.Info("the rendezvous is held by PyTorch; looking at it twice a second", "run_id", n.cfg.RunID,
			"endpoint", e.String())
		return newCAS(ctx, n)
	}
	client.Last() // whether the server is still the same is for the session to say
	return n.greet(ctx, conn, dialerTo(conn, cfg))
}

// again: a node that the rendezvous has dropped is not a part of it any more, but the
// rendezvous is there.
func (e *fixed) again(p protocol) bool {
	s, ok := p.(*session)
	if !ok || !s.part.Evicted || e.serves {
		return false
	}
	e.n.log.Info("connecting again to the rendezvous, which has not heard from this host for too long",
		"run_id", e.n.cfg.RunID)
	return true
}

// ownAddr is this host's address on a connection to the endpoint, unless that is on
// this host too: then it is the one by which others know the endpoint.
func (e *open) ownAddr(ctx context.Context, local net.Addr) string {
	tcp, ok := local.(*net.TCPAddr)
	switch {
	case !ok:
		return localAddr(ctx, e.String())
	case tcp.IP.IsLoopback():
		return hostAddr(ctx, e.host)
	}
	return tcp.IP.String()
}

// maxValue is the longest value that an agent reads, in bytes: any node that may join can store a large one
// for all to read. The largest that agents write is the plan of a live group.
const maxValue = 64 << 20

// dial connects to the agents' store.
func (n *Node) dial(ctx context.Context, cfg tcpstore.ClientConfig) (*tcpstore.Client, error) {
	var connected atomic.Bool // then it is not for hosts that anybody waits
	if tell := cfg.OnRetry; tell != nil {
		cfg.OnRetry = func(err *tcpstore.ConnectError, left time.Duration) {
			if !connected.Load() {
				tell(err, left)
			}
		}
	}
	cfg.MaxValue = maxValue
	client, err := tcpstore.Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	connected.Store(true)
	n.link.agents, n.link.hangUp = client, func() { client.Close() }
	return client, nil
}

// nodes counts the nodes of this process, which gives each its local ID.
var nodes atomic.Int64

// setNode says who this node is; addr is its address unless --local-addr names one.
func (n *Node) setNode(addr string) {
	addr = cmp.Or(n.cfg.LocalAddr, addr)
	n.link.me = state.Node{Addr: addr, PID: os.Getpid(), LocalID: int(nodes.Add(1) - 1)}
	n.link.addr = addr
	// An address that is translated on its way to this host holds as it was given.
	n.link.exact = n.cfg.LocalAddr != "" || n.cfg.Settings.Bind != "" || !hostport.IsLocal(addr)
}

// alone is the endpoint of a job on one host. Where the endpoint has a port that others
// can know its agent opens it all the same; port 0 keeps the agents' store in memory.
type alone struct{ fixed }

// Alone returns the node of a job on one host, whose workers meet in a store of their own.
func Alone(backend string, cfg rendezvous.Spec, host string, port int) (rendezvous.Handler, error) {
	n, err := ofOne(backend, cfg)
	if err != nil {
		return nil, err
	}
	n.endpoint = &alone{fixed{n: n, host: host, port: port}}
	return n, nil
}

func (e *alone) connect(ctx context.Context) (protocol, error) {
	if err := e.open(ctx); err != nil {
		return nil, err
	}
	e.n.link.addr = cmp.Or(e.n.cfg.LocalAddr, "127.0.0.1")
	return &constant{next: e.next}, nil
}

// open makes the agents' store: in memory for port 0, otherwise at the endpoint,
// hosted here or, where the port is taken, by the TCPStore that has it.
func (e *alone) open(ctx context.Context) error {
	if e.port == 0 {
		e.n.link.agents = store.NewMemory()
		return nil
	}
	host := e.n.cfg.Settings.IsHost
	if host != nil && !*host || host == nil && !hostport.IsThisHost(ctx, e.host) {
		return e.dial(ctx)
	}
	err := e.listen(e.n.agentsConfig(endpointHost(e.host), e.port))
	if host == nil && errors.Is(err, syscall.EADDRINUSE) && e.dial(ctx) == nil {
		return nil // another agent of this machine hosts the store for both
	}
	return err
}

func (e *alone) dial(ctx context.Context) error {
	_, err := e.n.dial(ctx,
		tcpstore.ClientConfig{Addr: e.String(), Timeout: e.n.cfg.Settings.ReadTimeout, Guard: e.n.guard, Logger: e.n.log})
	return err
}

// next has a new workers' store, which the workers of the round before cannot reach.
func (e *alone) next(ctx context.Context, number int) (*round, error) {
	n := e.n
	r := &round{number: number, size: 1, store: n.roundStore(number), jobStore: n.jobStore(0), addr: n.link.addr}
	if n.cfg.Live {
		return r, nil
	}
	err := n.workers.close()
	if err == nil {
		r.port, err = n.workers.open(n.oneHost(r.addr, 0), n.cfg.PrivateStore)
	}
	if err != nil {
		return nil, n.connectionError(fmt.Errorf("start the workers' store: %w", err))
	}
	return r, publish(ctx, r)
}
