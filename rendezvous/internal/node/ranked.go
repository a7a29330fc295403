package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// What the agents of a static job agree on before the first round, in the job's
// store.
const (
	agentsKey = "agents" // how many agents beside rank 0 are muster's; one that was started again counts twice
	hostKey   = "host/"  // and a node rank: its host's name
	modeKey   = "mode"   // what follows, in rank 0's word: one of these
	modeHeld  = "held"   // all are muster's: rank 0's server holds the rendezvous
	modePlain = "plain"  // some are PyTorch's, which know no rounds

	roleKey = "torchelastic/role_info/" // and a node rank: what an agent of PyTorch's says first, in its round's store
)

// ranked is the endpoint of a job whose nodes have ranks from the start. Rank 0 serves
// the store, as with PyTorch's agents; and if all agents are ours, the rendezvous.
// Source: StaticTCPRendezvous in static_tcp_rendezvous.py.
type ranked struct {
	fixed
	rank    int
	torch   bool                     // rank 0 is PyTorch's, which says so only when all have come
	expired *rendezvous.TimeoutError // of connect; it has what was waited for last
	warned  bool                     // that another job is at the endpoint
}

// Ranked returns the node with a rank in a job whose rank 0 is at a host and a port.
// Their store is the workers' too, unless the agents' is guarded.
func Ranked(backend string, cfg rendezvous.Spec, host string, port int) (rendezvous.Handler, error) {
	cfg.MinNodes, cfg.Settings.Join = cfg.MaxNodes, cfg.Settings.WithDefaults().Timeout
	n, err := ofMany(backend, cfg)
	if err != nil {
		return nil, err
	}
	n.link.me = state.Node{Addr: fmt.Sprintf("%08d", cfg.NodeRank)}
	own := hostport.Reachable(host)
	n.link.addr, n.link.shared, n.link.port = own, n.guard == nil && !cfg.Live, port
	n.link.exact = n.link.shared || !hostport.IsLocal(own)
	n.endpoint = &ranked{fixed: fixed{n: n, host: host, port: port}, rank: cfg.NodeRank}
	return n, nil
}

func (e *ranked) connect(ctx context.Context) (protocol, error) {
	n := e.n
	timeout := n.cfg.Settings.Timeout
	e.expired = &rendezvous.TimeoutError{RunID: n.cfg.RunID, Phase: "join", After: timeout}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, e.expired)
	defer cancel()
	defer n.cfg.OnWaiting(rendezvous.Waiting{})
	if e.rank == 0 {
		if err := e.hold(); err != nil {
			return nil, err
		}
		if ips, _ := hostport.Lookup(ctx, e.host); len(ips) > 0 && !hostport.IsThisHost(ctx, e.host) {
			n.log.Warn("this host has node rank 0, but the endpoint, where the others look for it, is not one of its addresses; check Spec.NodeRank and Spec.Endpoint's host",
				"run_id", n.cfg.RunID, "endpoint", e.String())
		}
		mode, err := e.countAgents(ctx)
		if err == nil {
			err = n.jobStore(0).Set(ctx, modeKey, []byte(mode))
		}
		switch {
		case err != nil:
			return nil, err
		case mode == modePlain:
			return &constant{next: e.next}, nil
		}
		return e.own(ctx)
	}

	p, err := e.follow(ctx)
	for until, _ := ctx.Deadline(); n.awaitsNext(ctx, err, until); {
		p, err = e.follow(ctx)
	}
	return p, err
}

// follow connects to rank 0.
func (e *ranked) follow(ctx context.Context) (protocol, error) {
	n := e.n
	cfg := e.clientConfig(n.cfg.Settings.Timeout)
	mode, err := e.report(ctx, cfg)
	switch {
	case err != nil:
		return nil, err
	case mode != modeHeld:
		return &constant{next: e.next}, nil
	}
	// Not before the others have come: it would be dropped for saying nothing.
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	if err != nil {
		return nil, err
	}
	return n.greet(ctx, conn, dialerTo(conn, cfg))
}

// errBegunAgain says that rank 0 is gone before all nodes have come. Another may come in its place.
var errBegunAgain = errors.New("rank 0 is gone before all nodes have come")

// report connects to rank 0's store, says that this node is there, and returns the mode
// that rank 0 chooses when all nodes are.
func (e *ranked) report(ctx context.Context, cfg tcpstore.ClientConfig) (mode string, err error) {
	n := e.n
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	e.torch = errors.Is(err, tcpstore.ErrNoSession)
	switch {
	case err == nil:
		conn.Close() // it was only to know who is there
	case !e.torch:
		return "", err
	}
	client, err := n.dial(ctx, cfg)
	if err != nil {
		return "", err
	}
	if err := e.present(ctx, cfg); err != nil || e.torch && n.cfg.IdenticalWorkers { // then nobody says its rank
		return modePlain, err
	}
	err = e.telling(ctx, func(ctx context.Context) error {
		if e.torch { // chooses no mode
			_, err := e.untilHere(ctx)
			return err
		}
		text, err := n.jobStore(0).Get(ctx, modeKey)
		mode = string(text)
		return err
	})
	switch {
	case err != nil && ctx.Err() == nil:
		n.link.hangUp()
		return "", fmt.Errorf("%w: %w", errBegunAgain, err)
	case e.torch:
		return modePlain, err
	}
	client.Last() // whether the server is still the same is for the session to say
	return mode, err
}

// name says which host has this node's rank.
func (e *ranked) name(ctx context.Context) error {
	s, key, host := e.n.jobStore(0), hostKey+strconv.Itoa(e.rank), e.n.cfg.Host
	was, err := s.CompareAndSet(ctx, key, nil, []byte(host))
	if other := string(was); err == nil && !strings.Contains(other, host) {
		e.n.log.Warn("another host uses this node rank; unless it has ended, give each host its own Spec.NodeRank",
			"run_id", e.n.cfg.RunID, "node_rank", e.rank, "host", text.Line(other, 253))
		err = s.Set(ctx, key, []byte(other+" or "+host))
	}
	return err
}

// present counts this node among ours and then among those that have come. The order matters: see nodesHere.
func (e *ranked) present(ctx context.Context, cfg tcpstore.ClientConfig) error {
	if err := e.name(ctx); err != nil {
		return err
	}
	if _, err := e.n.jobStore(0).Add(ctx, agentsKey, 1); err != nil {
		return err
	}
	cfg.WorldSize = e.n.cfg.MaxNodes
	client, err := tcpstore.Dial(ctx, cfg)
	if err != nil {
		return err
	}
	return client.Close()
}

// countAgents waits, on rank 0, until all nodes have come, and chooses the mode. As many clients are not enough:
// any program that finds the port can be one.
func (e *ranked) countAgents(ctx context.Context) (mode string, err error) {
	all := e.n.cfg.MaxNodes
	if err := e.name(ctx); err != nil {
		return "", err
	}
	err = e.telling(ctx, func(ctx context.Context) error {
		err := e.store.WaitForWorkers(ctx, all-1)
		if err == nil {
			mode, err = e.untilHere(ctx)
		}
		return err
	})
	return mode, err
}

// untilHere waits until each node rank has an agent, and returns the mode.
func (e *ranked) untilHere(ctx context.Context) (mode string, err error) {
	for here := (rendezvous.Waiting{}); err == nil; err = sleep.For(ctx, nextJob) {
		if _, err = e.n.jobStore(0).Add(ctx, agentsKey, 0); err != nil { // the store is gone
			break
		}
		if here, mode = e.nodesHere(ctx); here.Joined == e.n.cfg.MaxNodes {
			break
		}
	}
	return mode, err
}

// nodesHere says who has come and which ranks are missing, and the mode for those that have come. It reads the
// number of clients before that of ours, and each of ours is counted in the other order: none passes for a stranger.
func (e *ranked) nodesHere(ctx context.Context) (w rendezvous.Waiting, mode string) {
	s, all := e.n.jobStore(0), e.n.cfg.MaxNodes
	w, mode = rendezvous.Waiting{MinNodes: all, MaxNodes: all}, modeHeld
	came, torch := 0, 0
	if e.rank == 0 { // the others cannot read it
		came = e.store.Workers()
	}
	ours, _ := s.Add(ctx, agentsKey, 0)
	for rank := range all {
		key := strconv.Itoa(rank)
		if there, _ := s.Check(ctx, hostKey+key); there {
			name, _ := s.Get(ctx, hostKey+key)
			w.Known = append(w.Known, string(name))
		} else if there, _ := e.roundStore().Check(ctx, roleKey+key); there || e.torch && rank == 0 {
			torch++
		} else {
			w.Missing = append(w.Missing, "node rank "+key)
		}
	}
	w.Strangers, w.NumMissing = came-int(ours)-torch, len(w.Missing)
	if came > int(ours) && e.n.cfg.IdenticalWorkers { // then agents of PyTorch's do not say their ranks
		torch, w.Strangers, w.Missing, w.NumMissing = min(came-int(ours), w.NumMissing), 0, nil, 0
	}
	if torch > 0 {
		mode = modePlain
	}
	if e.rank > 0 && len(w.Missing) > 0 && w.Missing[0] == "node rank 0" && !e.warned { // but its store is there
		e.warned = true
		e.n.warnOfHolder("")
	}
	w.Joined, w.Known = len(w.Known)+torch, w.Known[:min(len(w.Known), mostNamed)]
	w.Missing = w.Missing[:min(len(w.Missing), mostNamed)]
	return w, mode
}

// mostNamed is how many nodes a line about those that have joined names.
const mostNamed = 8

// telling waits for something, and tells the user every few seconds how many nodes are
// there, some of their names, and some of those that are not.
func (e *ranked) telling(ctx context.Context, wait func(context.Context) error) error {
	came := make(chan error, 1)
	go func() { came <- wait(ctx) }()
	ticker := time.NewTicker(waitingInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-came:
			if err != nil && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		case <-ticker.C:
			w, _ := e.nodesHere(ctx)
			if deadline, ok := ctx.Deadline(); ok {
				w.Left = time.Until(deadline)
			}
			e.expired.Waiting = w
			e.n.cfg.OnWaiting(w)
		}
	}
}

// next is a round with agents that know nothing of rounds.
func (e *ranked) next(_ context.Context, number int) (*round, error) {
	return &round{
		number: number, rank: e.rank, size: e.n.cfg.MaxNodes, addr: e.n.link.addr, port: e.port,
		store: e.roundStore(), jobStore: e.n.jobStore(0),
	}, nil
}

// roundStore is that of all rounds with agents that know nothing of rounds.
func (e *ranked) roundStore() store.Store { return store.Prefix(e.n.cfg.RunID, e.n.link.agents) }

// aloneShared is the endpoint of a static job on one host: the store there is the
// workers', and the agents' too unless that is guarded.
type aloneShared struct {
	alone
	job store.Store
}

// AloneShared returns the node of a static job on one host.
func AloneShared(backend string, cfg rendezvous.Spec, host string, port int) (rendezvous.Handler, error) {
	if cfg.Live {
		return Alone(backend, cfg, host, 0)
	}
	n, err := ofOne(backend, cfg)
	if err != nil {
		return nil, err
	}
	n.endpoint = &aloneShared{alone{fixed{n: n, host: host, port: port}}, store.NewMemory()}
	return n, nil
}

func (e *aloneShared) connect(context.Context) (protocol, error) {
	if err := e.listen(e.n.oneHost(e.host, e.port)); err != nil {
		return nil, err
	}
	if e.n.guard != nil {
		e.n.link.agents = store.NewMemory() // every process that reaches the workers' store can write there
	}
	return &constant{next: e.next}, nil
}

// next finds the store empty: the workers of a round never read what others have left.
func (e *aloneShared) next(_ context.Context, number int) (*round, error) {
	if number > 0 {
		e.store.Reset()
	}
	return &round{
		number: number, size: 1, addr: e.host, port: e.port,
		store: store.Prefix(e.n.cfg.RunID, e.n.link.agents), jobStore: e.job,
	}, nil
}
