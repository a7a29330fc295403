package c10d

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// What the agents of a static job agree on before the first round, in the job's
// store.
const (
	agentsKey = "agents" // how many of them are ours
	modeKey   = "mode"   // what rank 0 makes of that
	modeHeld  = "held"   // all are: the rendezvous is held by rank 0's server
	modePlain = "plain"  // PyTorch's take part, which know no rounds
)

// static returns the carrier of a job whose nodes have fixed ranks. Rank 0 holds
// the store, as with PyTorch's agents; and if all agents are ours, the rendezvous.
// Source: StaticTCPRendezvous in static_tcp_rendezvous.py.
func (h *many) static(ctx context.Context) (carrier, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.cfg.Settings.Timeout,
		&rendezvous.TimeoutError{RunID: h.cfg.RunID, Phase: fmt.Sprintf("wait for all %d nodes", h.cfg.MaxNodes), After: h.cfg.Settings.Timeout})
	defer cancel()
	h.node = rendezvous.Node{Addr: fmt.Sprintf("%08d", *h.cfg.NodeRank)}
	if *h.cfg.NodeRank == 0 {
		if err := h.listen(); err != nil {
			return nil, err
		}
		mode, err := h.countAgents(ctx)
		if err != nil {
			return nil, err
		}
		if err := h.jobStore().Set(ctx, modeKey, []byte(mode)); err != nil {
			return nil, err
		}
		if mode == modePlain {
			return &plain{h: h}, nil
		}
		conn, err := h.server.ServeSession(sessionName)
		if err != nil {
			return nil, err
		}
		return h.greet(ctx, conn)
	}

	cfg := tcpstore.ClientConfig{Addr: h.endpoint(), Timeout: h.cfg.Settings.Timeout, KeepAlive: h.cfg.Settings.KeepAliveLimit(), Logger: h.log}
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	if err != nil && !errors.Is(err, tcpstore.ErrNoSession) {
		return nil, err
	}
	python := err != nil
	if h.client, err = tcpstore.Dial(ctx, cfg); err == nil {
		h.agents = h.client
		err = h.present(ctx, cfg)
	}
	mode := []byte(modePlain)
	if err == nil && !python {
		mode, err = h.jobStore().Get(ctx, modeKey)
	}
	if err == nil && string(mode) == modeHeld {
		return h.greet(ctx, conn)
	}
	if conn != nil {
		conn.Close()
	}
	return &plain{h: h}, err
}

// present counts this node among ours and then among those that have come.
func (h *many) present(ctx context.Context, cfg tcpstore.ClientConfig) error {
	if _, err := h.jobStore().Add(ctx, agentsKey, 1); err != nil {
		return err
	}
	cfg.WorldSize = h.cfg.MaxNodes
	client, err := tcpstore.Dial(ctx, cfg)
	if err != nil {
		return err
	}
	return client.Close()
}

// countAgents waits, on rank 0, until all nodes have come, and says what they are.
func (h *many) countAgents(ctx context.Context) (mode string, err error) {
	defer h.cfg.tellWaiting(rendezvous.Waiting{})
	came := make(chan error, 1)
	go func() { came <- h.server.WaitForWorkers(ctx, h.cfg.MaxNodes-1) }()
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-came:
			if err != nil {
				return "", err
			}
			ours, err := h.jobStore().Add(ctx, agentsKey, 1)
			if ours == int64(h.cfg.MaxNodes) {
				return modeHeld, err
			}
			return modePlain, err
		case <-ticker.C:
			ours, err := h.jobStore().Add(ctx, agentsKey, 0)
			if err != nil {
				continue
			}
			deadline, _ := ctx.Deadline()
			h.cfg.tellWaiting(rendezvous.Waiting{Joined: int(ours) + 1, MinNodes: h.cfg.MinNodes, MaxNodes: h.cfg.MaxNodes, Left: time.Until(deadline)})
		}
	}
}

func (h *many) jobStore() store.Store { return store.Prefix("muster."+h.cfg.RunID, h.agents) }

// emptyWorkersStore removes, on rank 0, what the workers of an earlier round have
// left: the agents share the store with them.
func (h *many) emptyWorkersStore(ctx context.Context, s store.Store) error {
	keys, err := s.ListKeys(ctx)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if !h.isAgentsKey(key) {
			if _, err := s.Delete(ctx, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// isAgentsKey says whether a key is the agents', not the workers'.
func (h *many) isAgentsKey(key string) bool {
	for _, prefix := range []string{"muster.", "torch.rendezvous.", h.cfg.RunID + "/", "init/"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// plain is a job of fixed ranks with agents that know nothing of rounds.
type plain struct {
	h     *many
	round int
}

func (c *plain) meet(context.Context, time.Time) (p place, addr string, port int, err error) {
	p = place{round: c.round, rank: *c.h.cfg.NodeRank, size: c.h.cfg.MaxNodes, foreign: true}
	c.round++
	return p, c.h.host, c.h.port, nil
}

func (c *plain) watch(context.Context, int, func(rendezvous.Change) bool) {}
func (c *plain) end(context.Context, bool) error                          { return nil }
func (c *plain) close()                                                   {}
func (c *plain) offset() time.Duration                                    { return 0 }
