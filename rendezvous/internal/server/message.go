package server

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Version is the version of the protocol.
const Version = 3

// MaxMessage is the longest message, in bytes.
const MaxMessage = 64 << 10

// mostRounds is a round's number that no job comes to, and that the state can hold
// with some more after it.
const mostRounds = 1 << 30

// Limits in bytes, so that no message of the rendezvous is longer than MaxMessage, with all the
// names that it may have and each byte as long as JSON can make it.
const (
	mostName  = 255  // of a host, a role, or MASTER_ADDR
	mostCause = 4000 // of how a job ended
	mostRunID = 4096
	mostKinds = 16 // of requests that a node answers, and their names are short
)

// A Type says what a message is about.
type Type string

// Messages from a node to the rendezvous.
const (
	Hello  Type = "hello"  // who it is; always the first
	Join   Type = "join"   // leave the round it is in and take part in the next
	Leave  Type = "leave"  // be in no round; answered by Left
	Close  Type = "close"  // no round follows; answered by Closed
	Ping   Type = "ping"   // it is alive; answered by Pong
	Status Type = "status" // whom does it wait for? answered by Status
	Master Type = "master" // from rank 0: where the round's workers meet
)

// Messages from the rendezvous to a node.
const (
	Welcome Type = "welcome" // answers Hello
	Refused Type = "refused" // answers Hello; the connection ends
	Pong    Type = "pong"
	Left    Type = "left"
	Spare   Type = "spare"  // the node is one that there is no place for, or (Redundant unset) not any more
	Round   Type = "round"  // the round is complete; Master follows, unless this node is rank 0
	Hosts   Type = "hosts"  // to rank 0, before its Round: addresses of the round's hosts
	Change  Type = "change" // something happened to the round
	Closed  Type = "closed" // no round will follow
	Ring    Type = "ring"   // another agent calls
)

// Messages of calls, on connections of their own; Welcome and Refused answer them.
const (
	Call   Type = "call"   // to the agent with a Rank in the last round of a RunID
	Answer Type = "answer" // to a Ring
)

// A message on a connection for the workers of one host; Welcome and Refused answer it.
const (
	Store Type = "store" // the workers' store of a Round of a RunID
)

// A Message is one message of a session. Which fields count depends on its type.
type Message struct {
	Type       Type `json:"type"`
	Greeting        // Hello
	Assignment      // Round
	Calling         // Call, Ring, Answer

	// Host is the node's in a Hello, and in a Change that of the node which it is about. Of a Spare: hosts that have
	// several agents.
	Host string `json:"host,omitempty"`

	// Sent is the node's clock, in a Hello and a Ping, and comes back as it was in their
	// answers; Time is the rendezvous'. Nanoseconds since 1970.
	Sent int64 `json:"sent,omitempty"`
	Time int64 `json:"time,omitempty"`

	// Round, Master, Change: which round. Rank is the node's in a Round, and in a Change
	// that of the node which it is about, -1 if that has none.
	Round int `json:"round,omitempty"`
	Rank  int `json:"rank,omitempty"`
	// Torch: in a Round, nodes without a session take part; a Change is about one.
	Torch bool                  `json:"torch,omitempty"`
	Kind  rendezvous.ChangeKind `json:"kind,omitempty"` // Change

	// Join, Hosts: the addresses from which a host's processes may connect to others, or those
	// of all hosts of a round.
	Hosts []netip.Prefix `json:"hosts,omitempty"`

	// Master. In a Round for rank 0 Addr is its host's address in the eyes of others, if
	// the server is there too and knows. In a Join it is the IP address by which the node has
	// reached the server.
	Addr string `json:"addr,omitempty"`
	Port int    `json:"port,omitempty"`

	Redundant bool `json:"redundant,omitempty"` // Closed, Spare: the node was, or is, a spare
	Refusal
	Outcome *rendezvous.Outcome `json:"outcome,omitempty"` // Close, Closed: how the job ends, if that is known
	Waiting *rendezvous.Waiting `json:"waiting,omitempty"` // Status

	origin origin // Hello; set by the server
}

// A Greeting is what a node says of itself, in a Hello; a Call and a Store have a part of it. A Welcome has
// the RunID of the job whose agent holds the rendezvous.
type Greeting struct {
	Version        int           `json:"version,omitempty"`
	RunID          string        `json:"run_id,omitempty"`
	Node           *state.Node   `json:"node,omitempty"`
	Instance       uint64        `json:"instance,omitempty"` // random, of its process, and a secret; 0: not known
	MinNodes       int           `json:"min_nodes,omitempty"`
	MaxNodes       int           `json:"max_nodes,omitempty"`
	LastCall       time.Duration `json:"last_call,omitempty"`
	KeepAlive      time.Duration `json:"keep_alive,omitempty"`       // between pings
	KeepAliveLimit time.Duration `json:"keep_alive_limit,omitempty"` // without a message it is dead
	Role           string        `json:"role,omitempty"`
	LocalWorldSize int           `json:"local_world_size,omitempty"`
	Calls          bool          `json:"calls,omitempty"`   // it takes calls that are for no kind of request
	Answers        []string      `json:"answers,omitempty"` // the kinds of requests that it answers
	Boot           string        `json:"boot,omitempty"`    // of its machine, since that was started; "": not known
	// its workers continue in the next round, and use a store of the round here
	Live bool `json:"live,omitempty"`

	// Last is where the node stood in the last round, if it was in one of another
	// rendezvous of the same run, whose holder is lost.
	Last *Place `json:"last,omitempty"`
	// Restarts are those that the job had used by then, as far as the node knows.
	Restarts int `json:"restarts,omitempty"`
	// Spare says that it waited as a spare there when the holder was lost.
	Spare bool `json:"spare,omitempty"`
}

// A Refusal is why a Hello, a Call or a Store is Refused; a Calling says more of a Call's.
type Refusal struct {
	Error string `json:"error,omitempty"`
	// Over, of a Store: there is none of that round any more. Of a Hello: the job has ended at this
	// server, and another of its run ID meets elsewhere.
	Over  bool `json:"over,omitempty"`
	Taken bool `json:"taken,omitempty"` // Hello: by a session that may be dead
}

// A Calling is about a call.
type Calling struct {
	Call   uint64 `json:"call,omitempty"`   // Ring, Answer: the call's number
	Reader bool   `json:"reader,omitempty"` // Call: for somebody who reads logs
	// Ask: in a Call, and the Ring and the Welcome that follow, the kind of the one request that it is for; "" for HTTP.
	Ask   string `json:"ask,omitempty"`
	Final bool   `json:"final,omitempty"` // Refused, of a Call: it stays so in this round
	Gone  bool   `json:"gone,omitempty"`  // Refused, of a Call: the agent has left the job
}

// An Assignment is what a Round assigns to a node, beside the rank.
type Assignment struct {
	WorldSize int               `json:"world_size,omitempty"`
	First     string            `json:"first,omitempty"` // the node with rank 0
	Ranks     *rendezvous.Ranks `json:"ranks,omitempty"` // nil: exchange them
	// Job is the first round of the job, if others had this run ID before it.
	Job int `json:"job,omitempty"`
	// Used is the most Restarts that a node of a holder that is lost has said.
	Used int `json:"used,omitempty"`
	// NumHosts is for rank 0: how many addresses were in the Hosts before; 0 if they are
	// not known of every host.
	NumHosts int `json:"num_hosts,omitempty"`
	// Published says that rank 0 has no session: where the workers meet is in the store.
	Published bool `json:"published,omitempty"`
}

// An origin is how a node has reached the server.
type origin struct {
	reached string     // the address of the server's host
	from    netip.Addr // the node's
	near    bool       // the node is on that host too; then the others are not set
}

// sensible reports whether a Hello is complete, with numbers that a node can have and
// that the state can hold for PyTorch's agents.
func (m *Message) sensible() bool {
	const most = math.MaxInt32
	n := m.Node
	if len(m.Answers) > mostKinds || slices.ContainsFunc(m.Answers, func(kind string) bool { return len(kind) > mostName }) {
		return false
	}
	return n != nil && len(m.Host) <= mostName && len(m.Role) <= mostName && len(m.Boot) <= mostName &&
		len(n.Addr) <= pickle.MaxAddr && len(m.RunID) <= mostRunID &&
		0 <= n.PID && n.PID <= most && 0 <= n.LocalID && n.LocalID <= most &&
		1 <= m.MinNodes && m.MinNodes <= m.MaxNodes && m.MaxNodes <= most && 1 <= m.LocalWorldSize &&
		m.LocalWorldSize <= most &&
		0 < m.KeepAlive && m.KeepAlive <= m.KeepAliveLimit && 0 <= m.LastCall &&
		(m.Last == nil || m.Last.Round <= mostRounds && m.Last.WorldSize <= most &&
			len(m.Last.First) <= pickle.MaxAddr+mostName) && m.Restarts <= most
}

// A Place is a node's in a round.
type Place struct {
	Round     int    `json:"round"`
	Rank      int    `json:"rank"`
	WorldSize int    `json:"world_size"`
	First     string `json:"first,omitempty"` // as in Assignment
}

// Compare compares the rounds of two places: the later one is greater. Holders that did not know
// of each other may have given rounds the same number; then the larger round is greater.
func (p *Place) Compare(q *Place) int {
	return cmp.Or(cmp.Compare(p.Round, q.Round), cmp.Compare(p.WorldSize, q.WorldSize), cmp.Compare(p.First, q.First))
}

// Append appends the message as it goes over a connection: its length in four
// bytes, big endian, and JSON.
func (m *Message) Append(b []byte) []byte {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // there is nothing in it that JSON cannot say
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

// Read reads one message.
func Read(r io.Reader) (*Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxMessage {
		return nil, fmt.Errorf("a message of %d bytes, more than %d", n, MaxMessage)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("within a message of %d bytes: %w", n, err)
	}
	m := &Message{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("message %.80q: %w", text, err)
	}
	return m, nil
}
