package pickle

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Bounds of what Decode reads. A store decodes what a stranger has written while it holds its
// lock, so that maxWork is not far above what a state of MaxNodes nodes can need.
const (
	MaxSize  = 8 << 20        // bytes of a pickle
	MaxNodes = 100000         // nodes in each of a state's collections
	MaxAddr  = 1024           // bytes of a node's address
	maxWork  = 100 * MaxNodes // opcodes, and what they make, copy and look at
)

// An Error says where a pickle is not that of a rendezvous state.
type Error struct {
	Offset int    // of the opcode, in bytes from the pickle's start
	Reason string // what is wrong with it
}

func (e *Error) Error() string {
	return fmt.Sprintf("not a rendezvous state: at byte %d: %s", e.Offset, e.Reason)
}

// An OldStateError says that a state can be read but was written by an agent of
// PyTorch 1.13 or another release that newer agents cannot meet.
// Source: _RendezvousState and _NodeDesc in dynamic_rendezvous.py of 1.13.
type OldStateError struct {
	State *state.State // what it says, for display; naive times are taken as UTC
	Signs []string     // how it differs from a state of today
}

func (e *OldStateError) Error() string {
	return "the rendezvous state was written by an agent of torch 1.13 or another old release (" +
		strings.Join(e.Signs, ", ") + "); use muster or the same newer PyTorch on every host"
}

// DecodeText reads what a store's key holds, standard base64. For Sentinel the
// state and the error are nil. Errors are those of Decode, or a
// base64.CorruptInputError that says what was read.
func DecodeText(text []byte) (*state.State, error) {
	if string(text) == Sentinel {
		return nil, nil
	}
	if limit := base64.StdEncoding.EncodedLen(MaxSize); len(text) > limit {
		return nil, &Error{Reason: fmt.Sprintf("%d bytes of base64, more than %d", len(text), limit)}
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(data, text)
	if err != nil {
		return nil, fmt.Errorf("not a rendezvous state: %.40q: %w", text, err)
	}
	return Decode(data[:n])
}

// Decode reads a state that was pickled with protocol 2 to 5. Attributes that it
// does not know are ignored, as is what follows the pickle's end. The state shares
// nothing with data. The error is an *Error or an *OldStateError.
func Decode(data []byte) (*state.State, error) {
	if len(data) > MaxSize {
		return nil, &Error{Reason: fmt.Sprintf("%d bytes, more than %d", len(data), MaxSize)}
	}
	d := &decoder{data: data}
	at := d.run()
	s := d.state()
	if d.err != nil {
		return nil, &Error{Offset: at, Reason: d.err.Error()}
	}
	if old := d.signs(); old != nil {
		return nil, &OldStateError{State: s, Signs: old}
	}
	return s, nil
}

func (d *decoder) signs() (texts []string) {
	for i, old := range [...]bool{d.fqdn, d.naive, d.unlisted} {
		if old {
			texts = append(texts, [...]string{"nodes have an fqdn", "times have no zone", "there is no redundancy_list"}[i])
		}
	}
	return texts
}

// state makes a state of what the pickle has made.
func (d *decoder) state() *state.State {
	if d.err != nil {
		return nil
	}
	fields := d.root.fields
	s := &state.State{
		Round:    want[int](d, "round", fields["round"]),
		Complete: want[bool](d, "complete", fields["complete"]),
		Closed:   want[bool](d, "closed", fields["closed"]),
	}
	if v := fields["deadline"]; v != (none{}) {
		s.Deadline = d.time("deadline", v)
		if s.Deadline.IsZero() {
			s.Deadline = s.Deadline.Add(time.Microsecond) // datetime.min is past, not absent
		}
	}
	s.Participants = collect(d, "participants", fields, opEmptyDict, func(v any) int { return want[int](d, "a rank", v) })
	member := func(any) struct{} { return struct{}{} }
	s.WaitList = collect(d, "wait_list", fields, opEmptySet, member)
	if fields["redundancy_list"] == nil {
		fields["redundancy_list"], d.unlisted = &bag{kind: opEmptySet}, true
	}
	s.RedundancyList = collect(d, "redundancy_list", fields, opEmptySet, member)
	heartbeat := func(v any) time.Time { return d.time("a heartbeat", v) }
	s.LastHeartbeats = collect(d, "last_heartbeats", fields, opEmptyDict, heartbeat)
	return s
}

// want refuses a value that is missing or of another type.
func want[T any](d *decoder, what string, v any) T {
	t, ok := v.(T)
	if !ok {
		d.fail("%s: missing, or of another type", what)
	}
	return t
}

func (d *decoder) time(what string, v any) time.Time {
	at := want[instant](d, what, v)
	d.naive = d.naive || at.naive
	return at.Time
}

func (d *decoder) node(v any) state.Node {
	m := want[*member](d, "a key or member", v)
	if m == nil || !m.built {
		d.fail("a node has no attributes")
		return state.Node{}
	}
	d.fqdn = d.fqdn || m.fqdn
	return m.Node
}

// collect makes a map of a dict of nodes, or of a set of them, whose values are nothing.
func collect[V any](d *decoder, what string, fields map[string]any, kind byte, value func(any) V) map[state.Node]V {
	each := 1 // items of a node
	if kind == opEmptyDict {
		each = 2
	}
	b, ok := fields[what].(*bag)
	switch {
	case !ok || b.kind != kind:
		d.fail("%s: missing, or of another type", what)
		return nil
	case len(b.items)/each > MaxNodes:
		d.fail("%s has %d nodes, more than %d", what, len(b.items)/each, MaxNodes)
		return nil
	}
	m := make(map[state.Node]V, len(b.items)/each)
	for i := 0; i < len(b.items); i += each {
		m[d.node(b.items[i])] = value(b.items[i+each-1])
	}
	return m
}
