package pickle

import (
	"encoding/base64"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Sentinel is what the key holds before there is a state.
// Source: _NULL_SENTINEL in c10d_rendezvous_backend.py.
const Sentinel = "Y2FuaW1hZGFt"

const module = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

// What is the same in every pickle. The byte after 0x8c is the length of the str
// that follows.
const (
	strDatetime = "\x8c\x08datetime"

	stateHead = "\x80\x04\x8c\x37" + module + "\x8c\x10_RendezvousState\x93)\x81}("
	nodeHead  = "\x8c\x37" + module + "\x8c\x09_NodeDesc\x93)\x81}(\x8c\x04addr"
	timeHead  = strDatetime + strDatetime + "\x93C\x0a"
	timeTail  = strDatetime + "\x8c\x08timezone\x93" + strDatetime + "\x8c\x09timedelta\x93K\x00K\x00K\x00\x87R\x85R\x86R"
)

// Encode pickles a state with protocol 4, the nodes of each collection sorted, so
// that equal states give equal bytes. Time is kept to the microsecond and within
// Python's years 1 to 9999; bytes of an address that are not UTF-8 become U+FFFD.
//
// Decode reads the result back as an equal state as long as its limits are kept,
// and all ints fit 32 bits. Encode does not check that.
func Encode(s *state.State) []byte {
	nodes := len(s.Participants) + len(s.WaitList) + len(s.RedundancyList) + 2*len(s.LastHeartbeats)
	e := encoder{make([]byte, 0, 400+150*nodes)}
	e.raw(stateHead)
	e.str("round")
	e.int(s.Round)
	e.str("complete")
	e.bool(s.Complete)
	e.str("deadline")
	if s.Deadline.IsZero() {
		e.raw("N")
	} else {
		e.time(s.Deadline)
	}
	e.str("closed")
	e.bool(s.Closed)
	e.str("participants")
	items(&e, "}", s.Participants, e.int, "u")
	member := func(struct{}) {}
	e.str("wait_list")
	items(&e, "\x8f", s.WaitList, member, "\x90")
	e.str("redundancy_list")
	items(&e, "\x8f", s.RedundancyList, member, "\x90")
	e.str("last_heartbeats")
	items(&e, "}", s.LastHeartbeats, e.time, "u")
	e.raw("ub.")
	return e.b
}

// EncodeText pickles a state as a store's key holds it, in standard base64.
func EncodeText(s *state.State) []byte {
	return base64.StdEncoding.AppendEncode(nil, Encode(s))
}

type encoder struct{ b []byte }

func (e *encoder) raw(s string) { e.b = append(e.b, s...) }

func (e *encoder) str(s string) {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	if len(s) <= math.MaxUint8 {
		e.b = append(e.b, opShortBinUnicode, byte(len(s)))
	} else {
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opBinUnicode), uint32(len(s)))
	}
	e.raw(s)
}

func (e *encoder) int(n int) {
	switch {
	case n == int(uint8(n)):
		e.b = append(e.b, opBinInt1, byte(n))
	case n == int(uint16(n)):
		e.b = binary.LittleEndian.AppendUint16(append(e.b, opBinInt2), uint16(n))
	case n == int(int32(n)):
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opBinInt), uint32(n))
	default:
		e.b = binary.LittleEndian.AppendUint64(append(e.b, opLong1, 8), uint64(n))
	}
}

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, opNewTrue)
	} else {
		e.b = append(e.b, opNewFalse)
	}
}

func (e *encoder) node(n state.Node) {
	e.raw(nodeHead)
	e.str(n.Addr)
	e.raw("\x8c\x03pid")
	e.int(n.PID)
	e.raw("\x8c\x08local_id")
	e.int(n.LocalID)
	e.raw("ub")
}

// Source: datetime.min and datetime.max in Python's datetime.
var (
	minTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	maxTime = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
)

func (e *encoder) time(t time.Time) {
	t = t.UTC()
	if t.Before(minTime) {
		t = minTime
	} else if t.After(maxTime) {
		t = maxTime
	}
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	micros := t.Nanosecond() / 1000
	e.raw(timeHead)
	e.b = append(e.b, byte(year>>8), byte(year), byte(month), byte(day), byte(hour), byte(minute), byte(second),
		byte(micros>>16), byte(micros>>8), byte(micros))
	e.raw(timeTail)
}

// items writes a dict or a set of nodes: begin makes it, and end adds the items to it.
func items[V any](e *encoder, begin string, m map[state.Node]V, value func(V), end string) {
	if e.raw(begin); len(m) == 0 {
		return
	}
	e.raw("(")
	for _, n := range slices.SortedFunc(maps.Keys(m), state.Node.Compare) {
		e.node(n)
		value(m[n])
	}
	e.raw(end)
}
