package c10d

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

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
}

// open makes an empty store, or with private only finds a port at which worker
// rank 0 can make one.
func (m *master) open(bind string, private bool, log *slog.Logger) (port int, err error) {
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
		m.server, err = tcpstore.Listen(tcpstore.ServerConfig{Addr: bind + ":0", Logger: log})
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
func (h *many) openMaster(ctx context.Context, p place) (port int, err error) {
	if h.cfg.NodeRank != nil {
		if p.round == 0 {
			return h.port, nil
		}
		return h.port, h.emptyWorkersStore(ctx, h.server.Store())
	}
	port, err = h.master.open("", h.cfg.PrivateStore, h.log)
	if err != nil {
		return 0, h.connectionError(fmt.Errorf("start the workers' store: %w", err))
	}
	if p.foreign {
		s := h.roundStore(p.round)
		err = errors.Join(s.Set(ctx, "MASTER_ADDR", []byte(h.node.Addr)), s.Set(ctx, "MASTER_PORT", []byte(strconv.Itoa(port))))
	}
	if err != nil {
		return 0, h.connectionError(err)
	}
	return port, nil
}

// findMaster returns what rank 0 has published: in this round or, where it
// publishes only once, in the last one before.
func (h *many) findMaster(ctx context.Context, p place, deadline time.Time) (addr string, port int, err error) {
	h.master.close()
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, deadline,
			&rendezvous.TimeoutError{RunID: h.cfg.RunID, Phase: "wait for MASTER_ADDR and MASTER_PORT of rank 0", After: h.cfg.Settings.Join})
		defer cancel()
	}
	this := h.roundStore(p.round)
	soon, cancel := context.WithTimeout(ctx, publishedWait)
	err = this.Wait(soon, "MASTER_ADDR", "MASTER_PORT")
	cancel()
	if err == nil {
		return readMaster(ctx, this)
	}
	for round := p.round - 1; round >= 0; round-- {
		s := h.roundStore(round)
		if there, err := s.Check(ctx, "MASTER_ADDR", "MASTER_PORT"); err == nil && there {
			return readMaster(ctx, s)
		}
	}
	if err := this.Wait(ctx, "MASTER_ADDR", "MASTER_PORT"); err != nil {
		return "", 0, err
	}
	return readMaster(ctx, this)
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

// finished says whether at least n agents of a round wait at the exit barrier.
// PyTorch's agents send no heartbeats there, which is not to be taken for death.
// Source: _exit_barrier in elastic/agent/server/api.py.
func (h *many) finished(ctx context.Context, round, n int) bool {
	const key = "torchelastic/agent/terminal_state/num_members"
	s := h.roundStore(round)
	if there, err := s.Check(ctx, key); err != nil || !there {
		return false
	}
	arrived, err := s.Add(ctx, key, 0)
	return err == nil && arrived >= int64(n)
}
