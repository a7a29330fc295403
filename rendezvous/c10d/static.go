package c10d

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// What the agents of a static job agree on before the first round, in the job's
// store.
const (
	agentsKey = "agents" // how many of them are ours, those that were started again twice
	hostKey   = "host/"  // and a node rank: its host's name
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

	cfg := tcpstore.ClientConfig{
		Addr: h.endpoint(), Timeout: h.cfg.Settings.Timeout, KeepAlive: h.cfg.Settings.KeepAliveLimit(), Guard: h.guard, OnRetry: h.tellRetry(), Logger: h.log,
	}
	mode, err := h.report(ctx, cfg)
	switch {
	case err != nil:
		return nil, err
	case mode != modeHeld:
		return &plain{h: h}, nil
	}
	// Not before the others have come: it would be dropped for saying nothing.
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	if err != nil {
		return nil, err
	}
	h.client.Last() // whether the server is still the same is for the session to say
	return h.greet(ctx, conn)
}

// report connects to rank 0's store, says that this node is there, and returns what
// rank 0 makes of all nodes when they are.
func (h *many) report(ctx context.Context, cfg tcpstore.ClientConfig) (mode string, err error) {
	defer h.cfg.tellWaiting(rendezvous.Waiting{})
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	python := errors.Is(err, tcpstore.ErrNoSession)
	switch {
	case err == nil:
		conn.Close() // it was only to know who is there
	case !python:
		return "", err
	}
	if h.client, err = tcpstore.Dial(ctx, cfg); err != nil {
		return "", err
	}
	h.agents = h.client
	if err := h.present(ctx, cfg); err != nil || python {
		return modePlain, err
	}
	err = h.telling(ctx, func(ctx context.Context) error {
		text, err := h.jobStore().Get(ctx, modeKey)
		mode = string(text)
		return err
	}, func(ctx context.Context) (joined int, known, missing []string) {
		ours, _ := h.jobStore().Add(ctx, agentsKey, 0)
		return int(ours) + 1, nil, nil
	})
	return mode, err
}

// present counts this node among ours and then among those that have come.
func (h *many) present(ctx context.Context, cfg tcpstore.ClientConfig) error {
	s := h.jobStore()
	if err := s.Set(ctx, hostKey+strconv.Itoa(*h.cfg.NodeRank), []byte(h.cfg.Host)); err != nil {
		return err
	}
	if _, err := s.Add(ctx, agentsKey, 1); err != nil {
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
	if err := h.telling(ctx, func(ctx context.Context) error { return h.server.WaitForWorkers(ctx, h.cfg.MaxNodes-1) }, h.nodesHere); err != nil {
		return "", err
	}
	// One that was started again has been counted twice, here as well as there. The
	// room waits for the one that is still missing then.
	ours, err := h.jobStore().Add(ctx, agentsKey, 1)
	if ours >= int64(h.cfg.MaxNodes) {
		return modeHeld, err
	}
	return modePlain, err
}

// nodesHere says, on rank 0, who has come and, if all who have are ours, which ranks
// are missing.
func (h *many) nodesHere(ctx context.Context) (joined int, known, missing []string) {
	s := h.jobStore()
	ours, _ := s.Add(ctx, agentsKey, 0)
	foreign := max(h.server.Workers()-int(ours), 0)
	known = []string{h.cfg.Host}
	for rank := 1; rank < h.cfg.MaxNodes; rank++ {
		key := hostKey + strconv.Itoa(rank)
		if there, err := s.Check(ctx, key); err != nil || !there {
			missing = append(missing, "node rank "+strconv.Itoa(rank))
			continue
		}
		name, _ := s.Get(ctx, key)
		known = append(known, string(name))
	}
	if joined = len(known) + foreign; foreign > 0 {
		missing = nil
	}
	return min(joined, h.cfg.MaxNodes), known, missing
}

// telling waits for something, and tells the user every few seconds how many nodes are
// there, some of their names, and some of those that are not.
func (h *many) telling(ctx context.Context, wait func(context.Context) error, who func(context.Context) (joined int, known, missing []string)) error {
	came := make(chan error, 1)
	go func() { came <- wait(ctx) }()
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-came:
			return err
		case <-ticker.C:
			w := rendezvous.Waiting{MinNodes: h.cfg.MinNodes, MaxNodes: h.cfg.MaxNodes}
			joined, known, missing := who(ctx)
			w.Joined, w.Known, w.NumMissing = joined, known[:min(len(known), mostNamed)], len(missing)
			w.Missing = missing[:min(len(missing), mostNamed)]
			if deadline, ok := ctx.Deadline(); ok {
				w.Left = time.Until(deadline)
			}
			h.cfg.tellWaiting(w)
		}
	}
}

// mostNamed is how many nodes a line about those that have joined names.
const mostNamed = 8

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
