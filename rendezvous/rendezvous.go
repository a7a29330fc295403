// Package rendezvous is where agents meet before they start workers: who takes
// part in a round, and with which rank.
//
// A Handler carries one job's rendezvous over one backend. Each call of Next
// completes a round: it returns once this node has its group rank, with a store
// that all nodes of the round share and the address at which the workers will
// meet. Subpackages hold the backends, static, c10d, etcd and quorum; each makes a
// Handler from a Spec.
//
// The package does not start workers and does not decide about restarts; that
// is package agent.
package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/muster-run/muster/store"
)

// ErrClosed is returned by Next once any node has closed the rendezvous: the
// job has ended and its run ID cannot be used again on that store.
// Source: RendezvousClosedError in rendezvous/api.py.
var ErrClosed = errors.New("rendezvous closed")

// ErrRedundant is returned by Next on a spare node, which waited for room in the
// job until that had ended.
// Source: RendezvousGracefulExitError in rendezvous/api.py.
var ErrRedundant = errors.New("the job ended without needing this node")

// An Outcome says how a job ended.
type Outcome struct {
	Result OutcomeResult `json:"result"`
	// Host is that of the worker which failed first, or of the agent that was told to stop
	// the job with Signal at Time, by the clock that the job's nodes share.
	Host   string    `json:"host,omitempty"`
	Cause  string    `json:"cause,omitempty"`
	Signal int       `json:"signal,omitempty"`
	Time   time.Time `json:"time,omitzero"`
}

// An OutcomeResult is what an Outcome comes to.
type OutcomeResult string

const (
	JobSucceeded OutcomeResult = "succeeded"
	JobFailed    OutcomeResult = "failed"
	JobPreempted OutcomeResult = "preempted"
)

// An EndedError is an ErrClosed or ErrRedundant of a job whose agents have said how it ended.
type EndedError struct {
	Outcome
	Err error
}

func (e *EndedError) Error() string { return fmt.Sprintf("%v: it %s", e.Err, e.Result) }
func (e *EndedError) Unwrap() error { return e.Err }

// A TimeoutError says which phase ran out of time and how long it had.
// Source: RendezvousTimeoutError in rendezvous/api.py.
type TimeoutError struct {
	RunID string
	Phase string // "join", "last call", "close"
	After time.Duration
	// Waiting says how far the round was, or in its Note what was waited for; its MaxNodes
	// is 0 if that is not known.
	Waiting Waiting
}

func (e *TimeoutError) Error() string {
	run := ""
	if e.RunID != "none" { // which nobody has given
		run = fmt.Sprintf(" of run %q", e.RunID)
	}
	text := fmt.Sprintf("rendezvous%s: %s timed out after %v", run, e.Phase, e.After)
	if e.Waiting.MaxNodes > 0 || e.Waiting.Note != "" {
		e.Waiting.Left, e.Waiting.LastCall = 0, 0
		text += ": " + e.Waiting.String()
	}
	return text
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

	// Store is shared by the agents of this round and of no other round. It may be nil for a
	// single node.
	Store store.Store
	// JobStore is shared by the agents of all rounds. It may be nil for a single node whose
	// Handler's Changes are nil.
	JobStore store.Store

	// Serves says that this process holds the rendezvous, or the store at which the
	// workers meet, so that the other nodes of the round cannot do without it.
	Serves bool

	// MasterAddr and MasterPort are where the workers meet: MASTER_ADDR and
	// MASTER_PORT. The store there is empty when Next returns.
	MasterAddr string
	MasterPort int
	// LocalStore says that each agent of the round has such a place of its own, for its workers.
	LocalStore bool

	// Restarts is the most that a node of the round has said with CountRestarts, if JobStore is a new one.
	Restarts int
	// Ranks are this node's worker ranks where the rendezvous has assigned them;
	// nil means that the agents exchange them through Store.
	Ranks *Ranks
	// ClockOffset is what this node's clock is behind the clock that the job's
	// nodes share: time.Now() plus ClockOffset means the same on all nodes. It is
	// 0 where nothing is known of other clocks.
	ClockOffset time.Duration
}

// Ranks are the numbers of a node's first worker and the sizes of the job.
// Worker i has each base plus i.
type Ranks struct {
	Base, WorldSize         int
	RoleBase, RoleWorldSize int
}

// A Change is news of the round that Next returned last.
type Change struct {
	Kind ChangeKind
	// Node names the node concerned, and its group rank if it was one of the
	// round's; Rank is -1 otherwise.
	Node string
	Rank int
	// Err says why, for Disconnected.
	Err error
}

// A ChangeKind says what has happened.
type ChangeKind uint8

const (
	// NodesWaiting: other nodes wait to be admitted.
	NodesWaiting ChangeKind = iota + 1
	// NodeLost: a node of the round has died, or cannot be reached any more; with
	// Rank -1 it is the one that held the rendezvous, and the round's stores.
	NodeLost
	// NodeLeft: a node of the round has left because it was told to.
	NodeLeft
	// Evicted: the others count this node as lost.
	Evicted
	// Closed: a node has closed the rendezvous; no round will follow.
	Closed
	// Disconnected: the rendezvous cannot be reached any more.
	Disconnected
	// Suspended: whether the agent that holds the rendezvous is still elected cannot be
	// found out, and the nodes that are not in the round are enough for another one elsewhere.
	Suspended
)

var changeKinds = [...]string{"", "nodes waiting", "node lost", "node left",
	"evicted", "closed", "disconnected", "suspended"}

func (k ChangeKind) String() string {
	if k > 0 && int(k) < len(changeKinds) {
		return changeKinds[k]
	}
	return "unknown"
}

// MarshalText returns what String does.
func (k ChangeKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText returns; what is not known is 0.
func (k *ChangeKind) UnmarshalText(text []byte) error {
	*k = ChangeKind(max(0, slices.Index(changeKinds[:], string(text))))
	return nil
}

// Handler carries the rendezvous of one job on one node. Next, Changes, Leave and Shutdown
// are called one after the other; the channel that Changes returned may be read meanwhile,
// and the other methods may be called at any time.
// Source: RendezvousHandler in rendezvous/api.py.
type Handler interface {
	// Backend returns the backend's name as --rdzv-backend has it.
	Backend() string
	// RunID returns the job's run ID.
	RunID() string
	// UseAgentStore reports whether an agent hosts the store at Info.MasterAddr;
	// otherwise worker rank 0 does (TORCHELASTIC_USE_AGENT_STORE).
	UseAgentStore() bool
	// Next leaves the round that this node is in, joins the next one and returns
	// when that has closed. Every round gets a new, empty store for its workers.
	// It returns ErrClosed, ErrRedundant, either in an *EndedError, a *TimeoutError,
	// a *ConnectionError, or ctx's cause.
	Next(ctx context.Context) (*Info, error)
	// Changes delivers what happens to the round that Next returned last, in
	// order; Next discards what has not been received.
	Changes() <-chan Change
	// CanChange reports whether the set of nodes of that round can change. False before the first round.
	CanChange() bool
	// Leave makes this node leave the job, which continues without it if enough
	// nodes stay, and releases what the handler holds. The handler cannot be
	// used afterwards.
	Leave(ctx context.Context) error
	// Shutdown closes the rendezvous for all nodes and releases what the
	// handler holds. The handler cannot be used afterwards.
	Shutdown(ctx context.Context) error
	// End closes the rendezvous for all nodes and says how the job ends, as soon as that is
	// known: while workers are still being stopped, and before Shutdown. The first outcome
	// counts. It returns at once, and may be called from any goroutine.
	End(o Outcome)
	// CountRestarts is told before Next how many restarts the job has used, which outlive the loss of the agent
	// that holds JobStore.
	CountRestarts(used int)
	// OnSpare has Next call f when this node is to wait as a spare. It is to be called before
	// Next.
	OnSpare(f func())
	Caller
}

// Basic has the methods that a Handler of your own can do without; embed it there. Its nodes are given, and it lets
// no agent ask another.
type Basic struct{}

func (Basic) CanChange() bool   { return false }
func (Basic) End(Outcome)       {}
func (Basic) CountRestarts(int) {}
func (Basic) OnSpare(func())    {}

func (Basic) Ask(context.Context, int, string, []byte, int) ([]byte, error) { return nil, ErrNoCalls }
func (Basic) Handle(string, func(context.Context, []byte) ([]byte, error))  {}
func (Basic) Call(context.Context, int) (net.Conn, error)                   { return nil, ErrNoCalls }
func (Basic) CallToRead(context.Context, int) (net.Conn, error)             { return nil, ErrNoCalls }
func (Basic) Calls() (net.Listener, error)                                  { return nil, ErrNoCalls }

// A CallError says why an agent cannot be called: it is one of torchrun, or is gone.
type CallError struct {
	Reason string
	Final  bool // it stays so for as long as the round lasts
	Gone   bool // the agent has left the job
}

func (e *CallError) Error() string { return e.Reason }

// ErrNoCalls is the error of Call while no muster server holds the rendezvous.
var ErrNoCalls = errors.New(
	"no agent of this job can be called: its rendezvous is held by PyTorch, or there is none at the moment")

// A Caller reaches the other agents of the job, through the one that holds the rendezvous, with its
// token and TLS: agents ask each other (Ask, Handle), and a call (Call, Calls) is a connection for the HTTP of
// people and programs. No connection is open while there is neither. Its methods may be called at any time, but as
// their comments say.
type Caller interface {
	// Ask sends a request of a kind, of at most 64 KiB, to the agent with a group rank in the last round, and returns
	// its answer, of at most limit bytes. It gives up when ctx is done. The error is a *CallError if that agent cannot
	// be asked, as one of torchrun, or has no answer to this kind, as another release of muster; ErrNoCalls if none
	// can be asked; otherwise it has the text of the error that the agent answers.
	Ask(ctx context.Context, rank int, kind string, request []byte, limit int) ([]byte, error)
	// Handle has answer answer all requests of a kind. It is to be called before Next, for at most 16 kinds. Several
	// goroutines may call answer at a time. ctx ends when the one that asks gives up, and when this node leaves.
	Handle(kind string, answer func(ctx context.Context, request []byte) ([]byte, error))
	// Call connects to the agent with a group rank in the last round; the caller closes the
	// connection. The error is a *CallError if that agent cannot be called, ErrNoCalls if none can.
	Call(ctx context.Context, rank int) (net.Conn, error)
	// CallToRead is Call for somebody who reads logs for as long as he likes. Such calls are
	// refused sooner, so that there is room for others.
	CallToRead(ctx context.Context, rank int) (net.Conn, error)
	// Calls accepts the calls of other agents. It is to be called before Next, or no agent
	// can call this one. The caller that accepts a connection closes it. ErrNoCalls says that there never are any.
	Calls() (net.Listener, error)
}
