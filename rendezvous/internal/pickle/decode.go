package pickle

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/muster-run/muster/rendezvous"
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
	State *rendezvous.State // what it says, for display; naive times are taken as UTC
	Signs []string          // how it differs from a state of today
}

func (e *OldStateError) Error() string {
	return "the rendezvous state was written by an agent of torch 1.13 or another old release (" +
		strings.Join(e.Signs, ", ") + "); use muster or the same newer PyTorch on every host"
}

// DecodeText reads what a store's key holds, standard base64. For Sentinel the
// state and the error are nil. Errors are those of Decode, or a
// base64.CorruptInputError that says what was read.
func DecodeText(text []byte) (*rendezvous.State, error) {
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
func Decode(data []byte) (*rendezvous.State, error) {
	if len(data) > MaxSize {
		return nil, &Error{Reason: fmt.Sprintf("%d bytes, more than %d", len(data), MaxSize)}
	}
	m := machine{data: data}
	at, err := m.run()
	var s *rendezvous.State
	var signs signs
	if err == nil {
		s, signs, err = m.result()
	}
	if err != nil {
		e := &Error{Offset: at, Reason: err.Error()}
		if at < len(data) {
			e.Op = data[at]
		}
		return nil, e
	}
	if old := signs.list(); old != nil {
		return nil, &OldStateError{State: s, Signs: old}
	}
	return s, nil
}

// signs are the marks of a state by an old release.
type signs struct{ fqdn, naive, unlisted bool }

func (s signs) list() (texts []string) {
	if s.fqdn {
		texts = append(texts, "nodes have an fqdn")
	}
	if s.naive {
		texts = append(texts, "times have no zone")
	}
	if s.unlisted {
		texts = append(texts, "there is no redundancy_list")
	}
	return texts
}

// result makes the state of the attributes that the pickle gave it.
func (m *machine) result() (*rendezvous.State, signs, error) {
	r := reader{machine: m}
	a := &m.state
	s := &rendezvous.State{
		Round:    r.int("round", a.round),
		Complete: r.bool("complete", a.completed),
		Closed:   r.bool("closed", a.closed),
	}
	if a.deadline.kind != none {
		s.Deadline = r.time("deadline", a.deadline)
		if s.Deadline.IsZero() {
			s.Deadline = s.Deadline.Add(time.Microsecond) // datetime.min is past, not absent
		}
	}
	s.Participants = make(map[rendezvous.Node]int, r.len("participants", a.participants, dict)/2)
	for n, v := range r.items(a.participants) {
		s.Participants[n] = r.int("a rank", v)
	}
	s.WaitList = r.set("wait_list", a.waiting)
	if a.redundant.kind == unset {
		r.signs.unlisted = true
		s.RedundancyList = rendezvous.Set{}
	} else {
		s.RedundancyList = r.set("redundancy_list", a.redundant)
	}
	s.LastHeartbeats = make(map[rendezvous.Node]time.Time, r.len("last_heartbeats", a.beating, dict)/2)
	for n, v := range r.items(a.beating) {
		s.LastHeartbeats[n] = r.time("a heartbeat", v)
	}
	return s, r.signs, r.err
}
