package c10d

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/pickle"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// publishedWait is how long a node that is not rank 0 waits for the address of
// this round before it takes an earlier round's: PyTorch's rank 0 publishes once
// in its life.
const publishedWait = 2 * time.Second

// A master is where the workers of the rounds meet in which this node has rank 0.
// Its port stays the same as long as the node has that rank, since PyTorch's
// agents go on using the first one; what is stored there is gone in every round.
type master struct {
	server   *tcpstore.Server
	reserved *rendezvous.ReservedPort
	met      meeting                        // of the last round that another node led
	hosts    atomic.Pointer[[]netip.Prefix] // who may connect; empty: all
}

// A meeting is where the workers met when a node had rank 0.
type meeting struct {
	lead rendezvous.Node
	addr string
	port int
}

// open makes an empty store, or with private only finds a port at which worker
// rank 0 can make one.
func (m *master) open(cfg tcpstore.ServerConfig, private bool) (port int, err error) {
	switch {
	case private:
		m.close()
		if m.reserved, err = rendezvous.ReservePort(); err != nil {
			return 0, err
		}
		return m.reserved.Port, nil
	case m.server != nil:
		m.server.Reset()
	default:
		m.server, err = tcpstore.Listen(cfg)
		if err != nil {
			return 0, err
		}
	}
	return m.server.Port(), nil
}

func (m *master) close() {
	if m.server != nil {
		m.server.Close()
	}
	if m.reserved != nil {
		m.reserved.Close()
	}
	m.server, m.reserved = nil, nil
}

// openMaster makes the place where the workers of a round meet, on rank 0, and
// publishes it for nodes that look for it in the store.
func (h *many) openMaster(ctx context.Context, p place) (addr string, port int, err error) {
	if h.cfg.NodeRank != nil && h.guard == nil { // workers would have to pass the guard
		if p.round > 0 {
			err = h.emptyWorkersStore(ctx, h.server.Store())
		}
		return h.masterAddr(p.reached), h.port, err
	}
	addr, port, ok := h.inherit(ctx, p)
	if !ok {
		addr = h.masterAddr(p.reached)
		if h.cfg.Settings.OpenWorkersStore {
			p.hosts = nil
		}
		h.master.admitHosts(p.hosts)
		cfg := h.cfg.ServerConfig("", 0)
		cfg.Admit = h.master.admits
		if port, err = h.master.open(cfg, h.cfg.PrivateStore); err != nil {
			return "", 0, h.connectionError(fmt.Errorf("start the workers' store: %w", err))
		}
	}
	if p.foreign {
		s := h.roundStore(p.round)
		err = errors.Join(s.Set(ctx, "MASTER_ADDR", []byte(addr)), s.Set(ctx, "MASTER_PORT", []byte(strconv.Itoa(port))))
	}
	if err != nil {
		return "", 0, h.connectionError(err)
	}
	return addr, port, nil
}

// inherit finds the workers' store of an earlier round for a rank 0 that had none.
// PyTorch's agents go on with the one that they saw first, whoever has rank 0; so
// the others have to meet there too, as long as a node of the round has it.
func (h *many) inherit(ctx context.Context, p place) (addr string, port int, ok bool) {
	if !p.foreign || p.round == 0 || h.cfg.PrivateStore || h.master.server != nil {
		return "", 0, false
	}
	st := h.foreignState(ctx, p)
	if st == nil {
		return "", 0, false
	}
	addr, port, ok = h.published(ctx, p.round, func(addr string) bool {
		for n := range st.Participants {
			if n.Addr == addr {
				return true
			}
		}
		return false
	})
	return addr, port, ok && h.emptyMaster(ctx, addr, port)
}

// foreignState is the state of a complete round in which PyTorch's agents take
// part; nil if it cannot be had any more.
func (h *many) foreignState(ctx context.Context, p place) *rendezvous.State {
	text, err := h.agents.Get(ctx, stateKey(h.cfg.RunID))
	if err != nil {
		return nil
	}
	st, err := pickle.DecodeText(text)
	if err != nil || st == nil || st.Round != p.round || !st.Complete {
		return nil
	}
	return st
}

// leader is the node that has rank 0.
func leader(st *rendezvous.State) (lead rendezvous.Node) {
	for n, rank := range st.Participants {
		if rank == 0 {
			lead = n
		}
	}
	return lead
}

// mostRounds is how many earlier rounds are looked at. A round's number is what anybody
// has written.
const mostRounds = 64

// published returns the newest address of a round before this one that suits.
func (h *many) published(ctx context.Context, round int, suits func(addr string) bool) (addr string, port int, ok bool) {
	for oldest := max(0, round-mostRounds); round > oldest; {
		round--
		s := h.roundStore(round)
		if there, err := s.Check(ctx, "MASTER_ADDR", "MASTER_PORT"); err != nil || !there {
			continue
		}
		if addr, port, err := readMaster(ctx, s); err == nil && suits(addr) {
			return addr, port, true
		}
	}
	return "", 0, false
}

// emptyMaster removes what the workers of earlier rounds have left in a store that
// is used again, and says whether it answers. No worker runs at that time: those
// of the last round have ended before their agents joined this one, and agents
// start none before all of them have exchanged their ranks.
func (h *many) emptyMaster(ctx context.Context, addr string, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, publishedWait)
	defer cancel()
	client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: net.JoinHostPort(addr, strconv.Itoa(port)), Logger: h.log})
	if err != nil {
		return false
	}
	defer client.Close()
	if h.cfg.IdenticalWorkers {
		return true // nothing keeps agents from starting their workers
	}
	return h.emptyWorkersStore(ctx, client) == nil
}

// findMaster returns what rank 0 has published: in this round or, where it
// publishes only once, in an earlier one.
func (h *many) findMaster(ctx context.Context, p place, deadline time.Time) (addr string, port int, err error) {
	h.yieldMaster(p)
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, deadline,
			&rendezvous.TimeoutError{RunID: h.cfg.RunID, Phase: "wait for MASTER_ADDR and MASTER_PORT of rank 0", After: h.cfg.Settings.Join})
		defer cancel()
	}
	var lead rendezvous.Node
	if st := h.foreignState(ctx, p); st != nil {
		lead = leader(st)
	}
	met := &h.master.met
	if lead.Addr != "" && met.lead == lead && !h.cfg.PrivateStore && h.emptyMaster(ctx, met.addr, met.port) {
		return met.addr, met.port, nil
	}
	defer func() {
		if err == nil {
			*met = meeting{lead, addr, port}
		}
	}()
	this := h.roundStore(p.round)
	soon, cancel := context.WithTimeout(ctx, publishedWait)
	err = this.Wait(soon, "MASTER_ADDR", "MASTER_PORT")
	cancel()
	if err == nil {
		return readMaster(ctx, this)
	}
	suits := func(addr string) bool { return lead.Addr == "" || lead.Addr == addr }
	if addr, port, ok := h.published(ctx, p.round, suits); ok {
		h.emptyMaster(ctx, addr, port)
		return addr, port, nil
	}
	if err := this.Wait(ctx, "MASTER_ADDR", "MASTER_PORT"); err != nil {
		return "", 0, err
	}
	return readMaster(ctx, this)
}

// errStartOver says that the workers of a round cannot meet any more.
var errStartOver = errors.New("rank 0 is lost before it has said where the workers meet")

// findMasterUnless is findMaster, given up for the error that watch returns. watch
// runs meanwhile, and returns nil when its context ends.
func (h *many) findMasterUnless(ctx context.Context, p place, deadline time.Time, watch func(context.Context) error) (addr string, port int, err error) {
	finding, giveUp := context.WithCancel(ctx)
	defer giveUp()
	watching, found := context.WithCancel(ctx)
	defer found()
	var watcher sync.WaitGroup
	var why error
	watcher.Go(func() {
		if why = watch(watching); why != nil {
			giveUp()
		}
	})
	addr, port, err = h.findMaster(finding, p, deadline)
	found()
	watcher.Wait()
	if why != nil {
		if errors.Is(why, errStartOver) {
			h.log.Warn("rendezvous: rank 0 is lost before it has said where the workers meet; joining again", "run_id", h.cfg.RunID, "round", p.round)
		}
		return "", 0, why
	}
	return addr, port, err
}

// yieldMaster is what becomes of this node's workers' store when another node has
// rank 0: PyTorch's agents may go on using it.
func (h *many) yieldMaster(p place) {
	if !p.foreign {
		h.master.close()
	}
}

func readMaster(ctx context.Context, s store.Store) (addr string, port int, err error) {
	values, err := s.MultiGet(ctx, []string{"MASTER_ADDR", "MASTER_PORT"})
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(string(values[1]))
	if err != nil || port < 1 || port > 65535 || len(values[0]) == 0 || len(values[0]) > 255 {
		return "", 0, fmt.Errorf("rank 0 published MASTER_ADDR %.80q and MASTER_PORT %.80q, which are no address", values[0], values[1])
	}
	return string(values[0]), port, nil
}
