// Package rendezvous is where agents meet before they start workers: who takes
// part in a round, and with which rank.
//
// A Handler carries one job's rendezvous over one backend. Each call of Next
// closes a round: it returns once this node has its group rank, with a store
// that all nodes of the round share and the address at which the workers will
// meet. Subpackages hold the backends: static and c10d.
//
// The package does not start workers and does not decide about restarts; that
// is package agent.
package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-run/muster/store"
)

// ErrClosed is returned by Next once any node has closed the rendezvous: the
// job has ended and its run ID cannot be used again on that store.
// Source: RendezvousClosedError in rendezvous/api.py.
var ErrClosed = errors.New("rendezvous closed")

// A TimeoutError says which phase ran out of time and how long it had.
// Source: RendezvousTimeoutError in rendezvous/api.py.
type TimeoutError struct {
	RunID string
	Phase string // "join", "last call", "close"
	After time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("rendezvous of run %q: %s timed out after %v", e.RunID, e.Phase, e.After)
}

// A ConnectionError says that the store of a rendezvous could not be reached or
// hosted. Its cause is wrapped.
// Source: RendezvousConnectionError in rendezvous/api.py.
type ConnectionError struct {
	Backend, Endpoint string
	Err               error
}

func (e *ConnectionError) Error() string {
	return fmt.Sprintf("%s rendezvous at %s: %v", e.Backend, e.Endpoint, e.Err)
}

func (e *ConnectionError) Unwrap() error { return e.Err }

// Info is what one node knows after a round has closed.
// Source: RendezvousInfo in rendezvous/api.py.
type Info struct {
	Round     int // counts from 0
	Rank      int // this node's group rank, 0 … WorldSize-1
	WorldSize int // nodes in the round

	// Store is shared by the agents of this round and of no other round.
	Store store.Store

	// MasterAddr and MasterPort are where the workers meet: MASTER_ADDR and
	// MASTER_PORT. The store there is empty when Next returns.
	MasterAddr string
	MasterPort int
}

// Handler carries the rendezvous of one job on one node. Next may not be called
// by two goroutines at once; the other methods may be called at any time.
// Source: RendezvousHandler in rendezvous/api.py.
type Handler interface {
	// Backend returns the backend's name as --rdzv-backend has it.
	Backend() string
	// RunID returns the job's run ID.
	RunID() string
	// UseAgentStore says whether an agent hosts the store at Info.MasterAddr;
	// otherwise worker rank 0 does (TORCHELASTIC_USE_AGENT_STORE).
	UseAgentStore() bool
	// Next joins the next round and returns when it has closed. Every round
	// gets a new, empty store for its workers. It returns ErrClosed, a
	// *TimeoutError, a *ConnectionError, or ctx's cause.
	Next(ctx context.Context) (*Info, error)
	// Changes is ready when other nodes wait to be admitted, which makes the
	// agent stop its workers and join a new round. It is nil where the set of
	// nodes cannot change.
	Changes() <-chan struct{}
	// Shutdown closes the rendezvous for all nodes and releases what the
	// handler holds. The handler cannot be used afterwards.
	Shutdown(ctx context.Context) error
}
