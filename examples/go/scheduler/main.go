// Command scheduler runs a program with its arguments as two workers on each host that a scheduler has chosen,
// and on which it sets JOB_ID, NODE_RANK, NODES, MASTER_ADDR and MASTER_PORT.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// hosts are a rendezvous.Handler of one round: the ranks are known, so the hosts need only a store.
type hosts struct {
	rendezvous.Basic
	rank, size, port int
	store            store.Store // the agents' part of the store that host 0 serves, also to the workers
}

func (*hosts) Backend() string                   { return "scheduler" }
func (*hosts) RunID() string                     { return os.Getenv("JOB_ID") }
func (*hosts) UseAgentStore() bool               { return true }
func (*hosts) Changes() <-chan rendezvous.Change { return nil }
func (*hosts) Leave(context.Context) error       { return nil }

func (h *hosts) Next(ctx context.Context) (*rendezvous.Info, error) {
	addr := fmt.Sprintf("%s:%d", os.Getenv("MASTER_ADDR"), h.port)
	if h.rank == 0 {
		if _, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: addr}); err != nil {
			return nil, err
		}
	}
	client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: addr})
	h.store = store.Prefix("agents", client)
	return &rendezvous.Info{Rank: h.rank, WorldSize: h.size, Store: h.store, JobStore: h.store,
		MasterAddr: os.Getenv("MASTER_ADDR"), MasterPort: h.port}, err
}

func (h *hosts) Shutdown(ctx context.Context) error { // until all are here, host 0 serves the others
	return store.Barrier(ctx, h.store, "end", h.size)
}

func main() {
	process.GuardMain()
	h, cfg := hosts{}, launch.Default()
	_, _ = fmt.Sscan(os.Getenv("NODE_RANK")+" "+os.Getenv("NODES")+" "+os.Getenv("MASTER_PORT"), &h.rank, &h.size, &h.port)
	cfg.MinNodes, cfg.MaxNodes, cfg.NprocPerNode, cfg.Rendezvous.Handler = h.size, h.size, 2, &h
	cfg.Workers.Entrypoint, cfg.Workers.Args = os.Args[1], os.Args[2:]
	result, err := launch.Run(context.Background(), cfg)
	if err := errors.Join(err, result.Err()); err != nil {
		log.Fatal(err)
	}
}
