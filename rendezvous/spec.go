package rendezvous

import (
	"log/slog"

	"github.com/muster-run/muster/store/tcpstore"
)

// A Spec is what a backend has to know of a node and its job. Each backend's New takes one.
type Spec struct {
	// RunID names the job; it must not be empty.
	RunID string
	// Endpoint is where the job meets, as --rdzv-endpoint has it. What it may be, and its
	// default port, are the backend's.
	Endpoint string
	// MinNodes and MaxNodes are how many nodes the job may have. With c10d the default is 1;
	// static takes MaxNodes alone, and its default is 1.
	MinNodes, MaxNodes int
	// NodeRank is this node's rank, 0 … MaxNodes-1. For static.
	NodeRank int
	// Role and LocalWorldSize are those of this node's workers, at least 1 if MaxNodes is
	// more than 1; Host is its name, for messages.
	Role           string
	LocalWorldSize int
	Host           string
	// LocalAddr is this host's address in the eyes of the others, and MASTER_ADDR of a store
	// that it has. Default: the node finds out. In a c10d job of one host it is the loopback
	// address, on which the workers' store then listens alone.
	LocalAddr string
	// PrivateStore makes worker rank 0 host the workers' store on a port that is held free
	// for it (TORCH_DISABLE_SHARE_RDZV_TCP_STORE). Not for static.
	PrivateStore bool
	// Live says that workers continue from round to round, and stand still in between: a round in which
	// all of the last one are back is complete, without a last call for others. Each agent then serves
	// its workers' store at the loopback address of its host, and at the same port in all rounds; what
	// it holds is where the rendezvous is. All nodes have the same; agents of PyTorch cannot take part.
	Live bool
	// IdenticalWorkers says that agents do not exchange their ranks before they start
	// workers (TORCH_ELASTIC_WORKER_IDENTICAL). For c10d and static.
	IdenticalWorkers bool
	// Conns bounds the connections to the stores that this agent holds; nil: nothing does.
	Conns *tcpstore.Limit
	// OnWaiting is called every few seconds while Next waits for other nodes, and
	// with a zero Waiting when that is over. It may be nil.
	OnWaiting func(Waiting)
	// Settings are the values of --rdzv-conf.
	Settings Settings
	// Logger gets what the rendezvous and its stores have to say. Default
	// slog.Default().
	Logger *slog.Logger
}
