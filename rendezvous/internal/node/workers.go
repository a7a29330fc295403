package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// publishedWait is how long a node that is not rank 0 waits for the address of
// this round before it takes an earlier round's: PyTorch's rank 0 publishes once
// in its life.
const publishedWait = 2 * time.Second

// A workersStore is the store in which the workers of a round meet, at MASTER_ADDR and
// MASTER_PORT, as far as this node has it. Which one it is depends on who has rank 0:
//
//	this node                 the agents' store, where that is shared (static on many hosts)
//	                          a port held free for worker rank 0, with PrivateStore
//	                          an earlier rank 0's (inherit), which agents of PyTorch keep to
//	                          else a server of this node's
//	another agent of muster   what its message Master says
//	an agent of PyTorch's     what it has published in the store of the round, or of an
//	                          earlier one, since it publishes once in its life
//
// A server's port stays the same as long as its node has rank 0, as agents of PyTorch continue
// using the first one; what is stored there is gone in every round.
//
// Either server or reserved is set, or neither. server reads hosts as connections come; the
// rest belongs to Next, and after it to Leave or Shutdown.
type workersStore struct {
	server   *tcpstore.Server
	reserved *hostport.Reservation
	hosts    atomic.Pointer[[]netip.Prefix] // who may connect; empty: all

	found struct { // what this node found last where another has rank 0
		rank0 state.Node
		addr  string
		port  int
	}
}

func (w *workersStore) serves() bool { return w.server != nil }

// open makes an empty store, or with private only finds a port at which worker
// rank 0 can make one.
func (w *workersStore) open(cfg tcpstore.ServerConfig, private bool) (port int, err error) {
	switch {
	case private:
		next, err := hostport.Reserve("", 0) // before the last one's end, whose port it must not have
		if err != nil {
			return 0, err
		}
		w.close()
		w.reserved = next
		return next.Port, nil
	case w.server != nil:
		w.server.Reset()
	default:
		w.server, err = tcpstore.Listen(cfg)
		if err != nil {
			return 0, err
		}
	}
	return w.server.Port(), nil
}

func (w *workersStore) close() (err error) {
	if w.server != nil {
		err = w.server.Close()
	}
	if w.reserved != nil {
		err = errors.Join(err, w.reserved.Close())
	}
	w.server, w.reserved = nil, nil
	return err
}

// admits is the Admit of the workers' store of many hosts.
func (w *workersStore) admits(nc net.Conn) string {
	hosts := w.hosts.Load()
	if hosts == nil || admit.List(*hosts).Admits(nc.RemoteAddr()) || isHere(nc.RemoteAddr()) {
		return ""
	}
	return "no host of this round has the address; if it is a worker's, give Spec.Settings.OpenWorkersStore"
}

// openWorkersStore makes the workers' store of a round of which this node has rank 0, and
// publishes its address for agents of PyTorch, which look for it in the agents' store.
func (n *Node) openWorkersStore(ctx context.Context, r *round) (err error) {
	if r.addr = n.link.addr; r.reached != "" && !n.link.exact {
		r.addr = r.reached
	}
	if n.cfg.Live {
		r.port, err = n.local.listen(n)
		return err
	}
	if n.link.shared {
		if r.port = n.link.port; r.number > 0 {
			err = n.emptyWorkersStore(ctx, n.link.agents)
		}
		return err
	}
	if !n.inherit(ctx, r) {
		if n.cfg.Settings.OpenWorkersStore {
			r.hosts = nil
		}
		n.workers.hosts.Store(&r.hosts)
		cfg := n.serverConfig("", 0)
		cfg.Admit = n.workers.admits
		if r.port, err = n.workers.open(cfg, n.cfg.PrivateStore); err != nil {
			return n.connectionError(fmt.Errorf("start the workers' store: %w", err))
		}
	}
	if r.torch {
		err = publish(ctx, r)
	}
	if err != nil {
		return n.connectionError(err)
	}
	return nil
}

// publish says in the store of a round where its workers meet.
func publish(ctx context.Context, r *round) error {
	if err := r.store.Set(ctx, "MASTER_ADDR", []byte(r.addr)); err != nil {
		return err
	}
	return r.store.Set(ctx, "MASTER_PORT", []byte(strconv.Itoa(r.port)))
}

// inherit uses the workers' store of an earlier round, for a rank 0 that had none itself.
// PyTorch's agents continue with the one that they saw first, also if rank 0 changes. So
// the workers of all others have to meet there too, as long as its node takes part.
func (n *Node) inherit(ctx context.Context, r *round) bool {
	if !r.torch || r.number == 0 || n.cfg.PrivateStore || n.workers.serves() {
		return false
	}
	st, ok := n.torchState(ctx, r)
	if !ok {
		return false
	}
	takesPart := map[string]bool{}
	for node := range st.Participants {
		takesPart[node.Addr] = true
	}
	addr, port, ok := n.published(ctx, r.number, func(addr string) bool { return takesPart[addr] })
	if !ok || !n.emptyStoreAt(ctx, addr, port) {
		return false
	}
	r.addr, r.port = addr, port
	return true
}

// torchState is the state of a complete round in which PyTorch's agents take
// part, if it can still be had.
func (n *Node) torchState(ctx context.Context, r *round) (st *state.State, ok bool) {
	text, err := n.link.agents.Get(ctx, stateKey(n.cfg.RunID))
	if err != nil {
		return nil, false
	}
	st, err = pickle.DecodeText(text)
	return st, err == nil && st != nil && st.Round == r.number && st.Complete
}

// rank0 is the node that has rank 0, if there is one.
func rank0(st *state.State) (node state.Node, ok bool) {
	for node, rank := range st.Participants {
		if rank == 0 {
			return node, true
		}
	}
	return node, false
}

// mostRounds is how many earlier rounds are looked at: a round's number is what anybody may
// have written.
const mostRounds = 64

// published returns the newest address of a round before this one that suits.
func (n *Node) published(ctx context.Context, round int,
	suits func(addr string) bool) (addr string, port int, ok bool) {
	for oldest := max(0, round-mostRounds); round > oldest; {
		round--
		s := n.roundStore(round)
		if there, err := s.Check(ctx, "MASTER_ADDR", "MASTER_PORT"); err != nil || !there {
			continue
		}
		if addr, port, err := readPublished(ctx, s); err == nil && suits(addr) {
			return addr, port, true
		}
	}
	return "", 0, false
}

func readPublished(ctx context.Context, s store.Store) (addr string, port int, err error) {
	values, err := s.MultiGet(ctx, []string{"MASTER_ADDR", "MASTER_PORT"})
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(string(values[1]))
	if err != nil || port < 1 || port > 65535 || len(values[0]) == 0 || len(values[0]) > 255 {
		return "", 0, fmt.Errorf("rank 0 published MASTER_ADDR %.80q and MASTER_PORT %.80q, which are not an address",
			values[0], values[1])
	}
	return string(values[0]), port, nil
}

// emptyStoreAt removes what the workers of earlier rounds have left in a store that
// is used again, and reports whether it answers. No worker runs at that time: those
// of the last round have ended before their agents joined this one, and agents
// start none before all of them have exchanged their ranks.
func (n *Node) emptyStoreAt(ctx context.Context, addr string, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, publishedWait)
	defer cancel()
	client, err := tcpstore.Dial(ctx,
		tcpstore.ClientConfig{Addr: net.JoinHostPort(addr, strconv.Itoa(port)), Logger: n.log})
	if err != nil {
		return false
	}
	defer client.Close()
	if n.cfg.IdenticalWorkers {
		return true // nothing keeps agents from starting their workers
	}
	return n.emptyWorkersStore(ctx, client) == nil
}

// emptyWorkersStore removes what the workers of an earlier round have left in a store.
// The agents may share it with them.
func (n *Node) emptyWorkersStore(ctx context.Context, s store.Store) error {
	keys, err := s.ListKeys(ctx)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if !n.isAgentsKey(key) {
			if _, err := s.Delete(ctx, key); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Node) isAgentsKey(key string) bool {
	prefixes := []string{"muster.", "torch.rendezvous.", n.cfg.RunID + "/", "init/"}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// findWorkersStore finds what rank 0 has published: in this round or, where it
// publishes only once, in an earlier one.
func (n *Node) findWorkersStore(ctx context.Context, r *round, deadline time.Time) (err error) {
	n.yieldWorkersStore(r)
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, deadline,
			&rendezvous.TimeoutError{RunID: n.cfg.RunID, Phase: "wait for MASTER_ADDR and MASTER_PORT of rank 0",
				After: n.cfg.Settings.Join})
		defer cancel()
	}
	var lead state.Node
	known := false
	if st, ok := n.torchState(ctx, r); ok {
		lead, known = rank0(st)
	}
	found := &n.workers.found
	if known && found.rank0 == lead && !n.cfg.PrivateStore && n.emptyStoreAt(ctx, found.addr, found.port) {
		r.addr, r.port = found.addr, found.port
		return nil
	}
	defer func() {
		if err == nil {
			found.rank0, found.addr, found.port = lead, r.addr, r.port
		}
	}()
	soon, cancel := context.WithTimeout(ctx, publishedWait)
	defer cancel()
	if r.store.Wait(soon, "MASTER_ADDR", "MASTER_PORT") != nil {
		addr, port, ok := n.published(ctx, r.number, func(addr string) bool { return !known || lead.Addr == addr })
		if ok {
			n.emptyStoreAt(ctx, addr, port)
			r.addr, r.port = addr, port
			return nil
		}
		if err := r.store.Wait(ctx, "MASTER_ADDR", "MASTER_PORT"); err != nil {
			return err
		}
	}
	r.addr, r.port, err = readPublished(ctx, r.store)
	return err
}

// errStartOver says that the workers of a round cannot meet any more.
var errStartOver = errors.New("rank 0 was lost before it announced where the workers meet")

// findWorkersStoreUnless is findWorkersStore, given up for the error that watch returns.
// watch runs meanwhile, and returns nil when its context ends.
func (n *Node) findWorkersStoreUnless(ctx context.Context, r *round, deadline time.Time,
	watch func(context.Context) error) error {
	finding, giveUp := context.WithCancel(ctx)
	defer giveUp()
	watching, found := context.WithCancel(ctx)
	defer found()
	var watcher sync.WaitGroup
	var why error // the watcher's, until it has ended: it has the session or the state meanwhile
	watcher.Go(func() {
		if why = watch(watching); why != nil {
			giveUp()
		}
	})
	err := n.findWorkersStore(finding, r, deadline)
	found()
	watcher.Wait()
	if why == nil {
		return err
	}
	if errors.Is(why, errStartOver) {
		n.log.Warn("rendezvous: rank 0 was lost before it announced where the workers meet; joining again",
			"run_id", n.cfg.RunID, "round", r.number)
	}
	return why
}

// yieldWorkersStore is what becomes of this node's workers' store when another node has
// rank 0: PyTorch's agents may keep using it.
func (n *Node) yieldWorkersStore(r *round) {
	if !r.torch {
		n.workers.close()
	}
}
