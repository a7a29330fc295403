package pickle

import (
	"encoding/binary"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// A value is what the machine's stack and memo hold: what it is, and either the
// thing itself or where it is found. Making one allocates nothing.
type value struct {
	kind kind
	n    uint32
}

type kind uint8

const (
	unset  kind = iota // in the memo: never stored
	none               // None
	yes                // True
	no                 // False
	number             // n is an int32
	text               // a str; n is the offset of its opcode in the input
	octets             // bytes; n is the offset of their opcode
	latin              // bytes, as the str at offset n in Latin-1
	empty              // ()
	tuple              // n is an index of machine.tuples
	dict               // n is an index of machine.bags, as of the next two
	set
	list
	class // n is a global
	delta // timedelta(0, 0, 0)
	utc   // timezone(timedelta(0, 0, 0))
	clock // a time in UTC; n is an index of machine.times
	naive // a time without a zone; n is an index of machine.times
	node  // n is an index of machine.nodes
	state // there is one at most
)

// Python's words for the kinds.
var kindNames = [...]string{
	none: "None", yes: "True", no: "False", number: "an int", text: "a str", octets: "bytes",
	latin: "bytes", empty: "an empty tuple", tuple: "a tuple", dict: "a dict", set: "a set", list: "a list",
	class: "a class", delta: "a timedelta", utc: "a timezone", clock: "a datetime", naive: "a datetime",
	node: "a node", state: "a state",
}

func (k kind) String() string { return kindNames[k] }

func (v value) int() int { return int(int32(v.n)) }

// The globals that a pickle may name.
const (
	classState = iota
	classNode
	classDatetime
	classTimezone
	classTimedelta
	funcSet
	funcEncode
)

// A vector is a tuple of one to three values.
type vector struct {
	n        uint8
	hashable bool
	items    [3]value
}

// A bag is a dict, a set or a list. A dict's keys and values alternate.
type bag struct{ items []value }

// A member is a node under construction: complete once BUILD has given it its
// attributes.
type member struct {
	rendezvous.Node
	complete, fqdn bool
}

// attrs are the attributes of a state.
type attrs struct {
	made, complete                            bool
	round, completed, deadline, closed        value
	participants, waiting, redundant, beating value
}

// bytesAt returns the str or bytes whose opcode, once executed, is at offset n.
func (m *machine) bytesAt(n uint32) []byte {
	at := n + 2
	size := uint32(m.data[n+1])
	if m.data[n] == opBinUnicode {
		at = n + 5
		size = binary.LittleEndian.Uint32(m.data[n+1:])
	}
	return m.data[at : at+size]
}

// latin1 returns what a str is in Latin-1, and whether that exists.
func latin1(s []byte) ([]byte, bool) {
	b := make([]byte, 0, len(s))
	for _, r := range string(s) {
		if r > 0xff {
			return nil, false
		}
		b = append(b, byte(r))
	}
	return b, true
}

// datetime reads the ten bytes of a Python datetime.
// Source: datetime.__setstate in _pydatetime.py.
func datetime(b []byte) (t time.Time, ok bool) {
	if len(b) != 10 {
		return t, false
	}
	const fold = 0x80 // says which of two equal local times; UTC has none
	year, month, day := int(binary.BigEndian.Uint16(b)), time.Month(b[2]&^fold), int(b[3])
	micros := int(b[7])<<16 | int(b[8])<<8 | int(b[9])
	if year < 1 || year > 9999 || b[4] > 23 || b[5] > 59 || b[6] > 59 || micros > 999999 {
		return t, false
	}
	t = time.Date(year, month, day, int(b[4]), int(b[5]), int(b[6]), micros*1000, time.UTC)
	return t, t.Month() == month && t.Day() == day
}
