package pickle

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Limits of what Decode reads.
const (
	MaxSize  = 8 << 20 // bytes of a pickle
	MaxNodes = 100000  // nodes in each of a state's collections
	MaxAddr  = 1024    // bytes of a node's address
)

// An Error says where a pickle is not that of a rendezvous state.
type Error struct {
	Offset int    // of the opcode, in bytes from the pickle's start
	Op     byte   // the opcode; 0 if the pickle ends there or is too large
	Reason string // what is wrong with it
}

func (e *Error) Error() string {
	if e.Op == 0 {
		return fmt.Sprintf("not a rendezvous state: at byte %d: %s", e.Offset, e.Reason)
	}
	return fmt.Sprintf("not a rendezvous state: %s at byte %d: %s", opName(e.Op), e.Offset, e.Reason)
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
	d := &decoder{data: data, known: map[text]any{}}
	at := d.run()
	r := reader{decoder: d}
	var s *state.State
	if d.err == nil {
		s = r.state()
	}
	if d.err != nil {
		e := &Error{Offset: at, Reason: d.err.Error()}
		if at < len(data) {
			e.Op = data[at]
		}
		return nil, e
	}
	if old := r.signs(); old != nil {
		return nil, &OldStateError{State: s, Signs: old}
	}
	return s, nil
}

// A reader turns the values of a state into Go's, and notes how it differs from one
// of today.
type reader struct {
	*decoder
	fqdn, naive, unlisted bool
}

func (r *reader) signs() (texts []string) {
	if r.fqdn {
		texts = append(texts, "nodes have an fqdn")
	}
	if r.naive {
		texts = append(texts, "times have no zone")
	}
	if r.unlisted {
		texts = append(texts, "there is no redundancy_list")
	}
	return texts
}

func (r *reader) state() *state.State {
	fields := r.decoder.state.fields
	s := &state.State{
		Round:    r.int("round", fields["round"]),
		Complete: want[bool](r.decoder, "complete", fields["complete"], "True"),
		Closed:   want[bool](r.decoder, "closed", fields["closed"], "True"),
	}
	if v := fields["deadline"]; v != (none{}) {
		s.Deadline = r.time("deadline", v)
		if s.Deadline.IsZero() {
			s.Deadline = s.Deadline.Add(time.Microsecond) // datetime.min is past, not absent
		}
	}
	s.Participants = readDict(r, "participants", fields["participants"], func(v any) int { return r.int("a rank", v) })
	s.WaitList = r.set("wait_list", fields["wait_list"])
	if v := fields["redundancy_list"]; v != nil {
		s.RedundancyList = r.set("redundancy_list", v)
	} else {
		s.RedundancyList, r.unlisted = state.Set{}, true
	}
	s.LastHeartbeats = readDict(r, "last_heartbeats", fields["last_heartbeats"], func(v any) time.Time { return r.time("a heartbeat", v) })
	return s
}

func (r *reader) int(what string, v any) int { return want[int](r.decoder, what, v, "an int") }

func (r *reader) time(what string, v any) time.Time {
	at := want[instant](r.decoder, what, v, "a datetime")
	r.naive = r.naive || at.naive
	return at.Time
}

// items returns what is in a dict or a set of nodes, each with a value in a dict.
func (r *reader) items(what string, v any, k kind, each int) []any {
	b, ok := v.(*bag)
	if !ok || b.kind != k {
		want[kind](r.decoder, what, v, string(k))
		return nil
	}
	if n := len(b.items) / each; n > MaxNodes {
		r.fail("%s has %d nodes, more than %d", what, n, MaxNodes)
		return nil
	}
	return b.items
}

func (r *reader) node(v any) (n state.Node) {
	m := want[*member](r.decoder, "a key or member", v, "a node")
	if m == nil {
		return n
	}
	r.fqdn = r.fqdn || m.fqdn
	return m.Node
}

func (r *reader) set(what string, v any) state.Set {
	items := r.items(what, v, set, 1)
	s := make(state.Set, len(items))
	for _, v := range items {
		s.Add(r.node(v))
	}
	return s
}

func readDict[V any](r *reader, what string, v any, value func(any) V) map[state.Node]V {
	items := r.items(what, v, dict, 2)
	m := make(map[state.Node]V, len(items)/2)
	for i := 0; i < len(items); i += 2 {
		m[r.node(items[i])] = value(items[i+1])
	}
	return m
}
