// Package node is one agent's part in the rendezvous of a job. All backends are made
// of it; it implements rendezvous.Handler.
//
// A Node has an endpoint, which finds the rendezvous or makes this process serve it,
// and a protocol, by which the node takes part in what was found there:
//
//	backend  endpoint                                protocol
//	c10d     open: a host and a port                 session, or cas at a store of PyTorch's
//	static   ranked: a host and a port, rank 0's     session, or constant with agents of PyTorch's
//	etcd     elected: wherever the elected agent is  session
//	quorum   elected                                 session
//
// A job on one host needs nobody to meet. Its protocol is constant, and its endpoint
// is alone (c10d) or aloneShared (static).
//
// Keys are TorchElastic's; what our agents tell each other beside them begins with
// "muster".
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// waitingInterval is how often a node that waits says for whom.
const waitingInterval = 3 * time.Second

// An endpoint is where a job's rendezvous is. String is what the user calls it.
type endpoint interface {
	fmt.Stringer
	// connect finds the rendezvous, or makes it, and sets the node's link.
	connect(ctx context.Context) (protocol, error)
	// again reports whether connect may find the rendezvous once more, or another, after p has
	// lost it.
	again(p protocol) bool
	// lost is the error, a lostError, of a rendezvous that was there and is not any more. loss
	// is what a round that runs hears of it.
	lost(err error) error
	loss(err error) rendezvous.Change
	// lacking says what an election waits for at the moment; "": for nothing.
	lacking() string
	// holds reports whether this process holds the rendezvous.
	holds() bool
	// close ends what this process serves, with all after the other nodes have been told
	// that the job is over.
	close(ctx context.Context, all bool) error
}

// A lostError is the end of a rendezvous as far as this node's connection to it goes: Next
// may find it again, or another. Other errors are this node's own.
type lostError struct{ *rendezvous.ConnectionError }

func (e lostError) Unwrap() error { return e.ConnectionError }

// A protocol is a way to take part in a rendezvous. Its methods are called by one
// goroutine at a time.
type protocol interface {
	// meet leaves the round that the node is in, joins the next one and returns
	// when the node has its rank and knows where the workers meet.
	meet(ctx context.Context, deadline time.Time) (*round, error)
	// watch delivers what happens to a round until ctx ends or deliver returns false.
	watch(ctx context.Context, round int, deliver func(rendezvous.Change) bool)
	// end makes this node leave, or closes the rendezvous for all.
	end(ctx context.Context, all bool) error
	close()
	// offset is how far this node's clock is behind that of the rendezvous.
	offset() time.Duration
}

// A round is a complete one, as this node knows it.
type round struct {
	number, rank, size, restarts int               // restarts: see rendezvous.Info
	first                        string            // the node with rank 0
	ranks                        *rendezvous.Ranks // of the workers, if the rendezvous has assigned them
	store, jobStore              store.Store       // of its agents, and of those of all rounds
	addr                         string            // where its workers meet
	port                         int

	// torch says that agents of PyTorch may take part.
	torch bool
	// constant says that the nodes are given and that nobody tells what becomes of them.
	constant bool
	// Of rank 0: its address in the eyes of other nodes, if known, and whence the
	// workers come, if that is known for sure.
	reached string
	hosts   []netip.Prefix
}

// A link is what connect finds out for the protocol that it returns.
type link struct {
	me     state.Node // this node
	addr   string     // MASTER_ADDR of a store that this host has
	exact  bool       // addr holds whatever address the others see
	shared bool       // the workers meet in the agents' store too, which is at port
	port   int
	agents store.Store // shared by all agents
	hangUp func()      // ends the connection to agents, if there is one
}

// A Node is one agent's part in a rendezvous.
//
// Next, Leave and Shutdown are called one after the other, and everything that mu does
// not guard is theirs. Between two calls of Next the watcher of the round that the first
// one returned has the protocol and may hang up; stopWatching ends it.
type Node struct {
	backend  string // its name, as --rdzv-backend has it
	cfg      rendezvous.Spec
	log      *slog.Logger
	guard    tcpstore.Guard // of the agents' store; nil: everybody may connect
	endpoint endpoint
	link     link         // set by endpoint.connect
	workers  workersStore // what this node serves, in rounds of which it has rank 0
	local    localStore   // or in every round, if its workers' store is local
	last     *server.Place
	calls    *callListener // nil: this agent takes no calls for HTTP
	answers  *answers
	onSpare  func() // see OnSpare
	used     int    // restarts, see CountRestarts
	spare    bool   // this node has waited as one since its last round; Next's

	changes chan rendezvous.Change // of the last round
	stop    func()                 // stops the watcher of the last round

	mu       sync.Mutex // guards the rest
	protocol protocol   // nil before endpoint.connect, and after a loss
	closed   bool
}

// newNode returns a node without an endpoint.
func newNode(backend string, cfg rendezvous.Spec) (*Node, error) {
	if cfg.RunID == "" {
		return nil, fmt.Errorf("%s rendezvous: the run ID is empty; give Spec.RunID a value", backend)
	}
	s := &cfg.Settings
	if min(cfg.MinNodes, cfg.MaxNodes, cfg.LocalWorldSize, s.KeepAliveMaxAttempt) < 0 || min(s.Join, s.LastCall,
		s.Close, s.Heartbeat, s.KeepAliveInterval, s.CASBackoffMax, s.ReadTimeout, s.Connect, s.Timeout) < 0 {
		return nil, fmt.Errorf("%s rendezvous: a number or a time of Spec or Spec.Settings is negative", backend)
	}
	cfg.Settings = cfg.Settings.WithDefaults()
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.OnWaiting == nil {
		cfg.OnWaiting = func(rendezvous.Waiting) {}
	}
	n := &Node{
		backend: backend, cfg: cfg, log: cfg.Logger,
		link: link{hangUp: func() {}}, onSpare: func() {}, stop: func() {}, answers: newAnswers(),
	}
	guard, err := auth.New(auth.Config{Token: s.Token, TokenFile: s.TokenFile, CACert: s.TLS.CACert,
		Cert: s.TLS.Cert, Key: s.TLS.Key})
	if err != nil {
		return nil, err
	}
	if guard != nil {
		n.guard = guard
	}
	return n, nil
}

// ofOne is newNode for a job on one host.
func ofOne(backend string, cfg rendezvous.Spec) (*Node, error) {
	n, err := newNode(backend, cfg)
	if err == nil {
		n.cfg.MinNodes, n.cfg.MaxNodes = 1, 1
	}
	return n, err
}

// ofMany is newNode for a job that may have several hosts.
func ofMany(backend string, cfg rendezvous.Spec) (*Node, error) {
	cfg.MinNodes = cmp.Or(cfg.MinNodes, 1)
	if cfg.MinNodes < 1 || cfg.MaxNodes < cfg.MinNodes || cfg.LocalWorldSize < 1 {
		return nil, fmt.Errorf("%s rendezvous: Spec.MinNodes %d, MaxNodes %d and LocalWorldSize %d: each is 1 or more, and "+
			"MaxNodes not less than MinNodes", backend, cfg.MinNodes, cfg.MaxNodes, cfg.LocalWorldSize)
	}
	return newNode(backend, cfg)
}

// Backend, RunID, UseAgentStore, Changes, CanChange, CountRestarts and OnSpare implement rendezvous.Handler.
func (n *Node) Backend() string                   { return n.backend }
func (n *Node) RunID() string                     { return n.cfg.RunID }
func (n *Node) UseAgentStore() bool               { return !n.cfg.PrivateStore }
func (n *Node) Changes() <-chan rendezvous.Change { return n.changes }
func (n *Node) CanChange() bool                   { return n.changes != nil }
func (n *Node) CountRestarts(used int)            { n.used = used }
func (n *Node) OnSpare(f func())                  { n.onSpare = f }

// Next implements rendezvous.Handler.
func (n *Node) Next(ctx context.Context) (*rendezvous.Info, error) {
	n.stopWatching()
	deadline := time.Now().Add(n.cfg.Settings.Join)
	p, r, err := n.join(ctx, deadline)
	for n.replaceable(ctx, p, err) {
		p, r, err = n.join(ctx, deadline)
	}
	n.cfg.OnWaiting(rendezvous.Waiting{})
	if n.spare && err == rendezvous.ErrClosed {
		err = rendezvous.ErrRedundant // which no holder was there to say
	}
	if err == nil {
		err = n.checkSize(r)
	}
	if err == nil && n.cfg.Live {
		err = n.openLocalStore(ctx, p, r)
	}
	if err != nil {
		return nil, err
	}
	n.last = &server.Place{Round: r.number, Rank: r.rank, WorldSize: r.size, First: r.first}
	n.spare = false
	n.startWatching(p, r)
	return &rendezvous.Info{
		Round: r.number, Rank: r.rank, WorldSize: r.size,
		Store: r.store, JobStore: r.jobStore,
		// Where nobody would tell that the others are gone this process does not wait for them.
		Serves:     !r.constant && (n.endpoint.holds() || n.workers.serves()),
		MasterAddr: r.addr, MasterPort: r.port, LocalStore: n.cfg.Live,
		Restarts: r.restarts, Ranks: r.ranks, ClockOffset: p.offset(),
	}, nil
}

// join connects to the rendezvous, if need be, and takes part in the next round.
func (n *Node) join(ctx context.Context, deadline time.Time) (protocol, *round, error) {
	p, err := n.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	r, err := p.meet(ctx, deadline)
	return p, r, err
}

func (n *Node) open(ctx context.Context) (protocol, error) {
	n.mu.Lock()
	p, closed := n.protocol, n.closed
	n.mu.Unlock()
	switch {
	case closed:
		return nil, rendezvous.ErrClosed
	case p != nil:
		return p, nil
	}
	p, err := n.endpoint.connect(ctx)
	expired, _ := err.(*rendezvous.TimeoutError)
	switch {
	case errors.Is(err, rendezvous.ErrClosed), expired != nil && expired.Phase == "join": // as a session says it
		return nil, err
	case errors.Is(ctx.Err(), context.Canceled): // whatever was tried then
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, n.connectionError(err)
	}
	if _, held := p.(*session); !held && n.cfg.Live && n.cfg.MaxNodes > 1 {
		return nil, n.connectionError(errTorchStore)
	}
	n.mu.Lock()
	n.protocol = p
	n.mu.Unlock()
	return p, nil
}

// replaceable reports whether p has lost the rendezvous and another can be found, and if
// so lets go of it.
func (n *Node) replaceable(ctx context.Context, p protocol, err error) bool {
	_, lost := errors.AsType[lostError](err)
	if p == nil || !lost || ctx.Err() != nil || !n.endpoint.again(p) {
		return false
	}
	p.close()
	n.link.hangUp()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.protocol = nil
	return !n.closed
}

// checkSize finds out that another agent, for which other rules hold, has completed
// the round. A muster server has compared --nnodes before.
func (n *Node) checkSize(r *round) error {
	cfg := &n.cfg
	if r.size >= cfg.MinNodes && r.size <= cfg.MaxNodes {
		return nil
	}
	nnodes := strconv.Itoa(cfg.MinNodes)
	if cfg.MaxNodes > cfg.MinNodes {
		nnodes += ":" + strconv.Itoa(cfg.MaxNodes)
	}
	return fmt.Errorf(
		"rendezvous of run %q: round %d has %d nodes, but Spec.MinNodes:MaxNodes is %s here: an agent with another Spec.MinNodes:MaxNodes takes part; give all hosts the same",
		cfg.RunID, r.number, r.size, nnodes)
}

// roundStore is what the agents of a round share in the rendezvous' store.
func (n *Node) roundStore(round int) store.Store {
	return store.Prefix(fmt.Sprintf("torch.rendezvous.%s.%d", n.cfg.RunID, round), n.link.agents)
}

// jobStore is what the agents of a job share there. A job is told by its first round
// from others that have had its run ID before. No run ID makes it another job's store.
func (n *Node) jobStore(first int) store.Store {
	return store.Prefix(fmt.Sprintf("muster.%s/%d", url.PathEscape(n.cfg.RunID), first), n.link.agents)
}

func (n *Node) connectionError(err error) *rendezvous.ConnectionError {
	return &rendezvous.ConnectionError{Backend: n.backend, Endpoint: n.endpoint.String(), Err: err}
}

// startWatching delivers what happens to a round. To a job on one host nothing can.
func (n *Node) startWatching(p protocol, r *round) {
	if r.constant && r.size == 1 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan rendezvous.Change, 64)
	var watching sync.WaitGroup
	n.changes = changes
	n.stop = func() { cancel(); watching.Wait() }
	watching.Go(func() {
		p.watch(ctx, r.number, func(change rendezvous.Change) bool {
			select {
			case changes <- change:
				return true
			case <-ctx.Done():
				return false
			}
		})
	})
}

func (n *Node) stopWatching() {
	n.stop()
	n.stop = func() {}
}

// End implements rendezvous.Handler.
func (n *Node) End(o rendezvous.Outcome) {
	n.mu.Lock()
	p := n.protocol
	n.mu.Unlock()
	switch p := p.(type) { // others learn it otherwise where it does not arrive, as where the holder is lost
	case *session:
		_ = p.conn.Send(&server.Message{Type: server.Close, Outcome: &o})
	case *cas:
		p.say(&o)
	}
}

// Leave implements rendezvous.Handler. On the node that holds the rendezvous it
// ends it for all, unless another one can be elected.
func (n *Node) Leave(ctx context.Context) error { return n.end(ctx, false) }

// Shutdown implements rendezvous.Handler. A node that holds the rendezvous waits
// until the others have been told.
func (n *Node) Shutdown(ctx context.Context) error { return n.end(ctx, true) }

func (n *Node) end(ctx context.Context, all bool) error {
	n.stopWatching()
	n.mu.Lock()
	p, closed := n.protocol, n.closed
	n.closed = true
	n.mu.Unlock()
	if closed {
		return nil
	}
	var err error
	if p != nil {
		soon, cancel := context.WithTimeout(ctx, leaveTimeout)
		err = p.end(soon, all)
		cancel()
		p.close()
	}
	n.answers.close()
	n.link.hangUp()
	return errors.Join(err, n.local.close(), n.workers.close(), n.endpoint.close(ctx, all))
}

// leaveTimeout bounds what a node waits for at its end, but for the other nodes.
const leaveTimeout = 5 * time.Second

// letGo ends the rendezvous that this node holds: with all, once the other nodes have left, since
// they may not have heard yet how the job ended.
func (n *Node) letGo(ctx context.Context, rdzv *server.Server, all bool) {
	if all {
		told := time.AfterFunc(leaveTimeout, func() {
			n.log.Warn("the job has ended; this host waits for the others to leave, because they learn the outcome from it",
				"run_id", n.cfg.RunID)
		})
		rdzv.Drain(ctx.Done(), n.cfg.RunID)
		told.Stop()
	}
	soon, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	rdzv.AwaitCalls(soon.Done())
	rdzv.Close() // the others hear that this node leaves, not that it is lost
}
