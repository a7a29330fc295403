package pickle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Limits beside those of Decode.
const (
	maxMarks = 64           // MARKs open at once
	maxStack = 8 * MaxNodes // values on the stack
	maxEach  = 4 * MaxNodes // nodes, as every one may be written for each collection; also times, tuples and bags
	maxWork  = MaxSize      // values and 8-byte words that are copied or looked at beside the input itself
)

// A machine runs a pickle.
type machine struct {
	data  []byte
	pos   int
	proto byte

	stack  []value
	marks  []int // heights of the stack
	memo   []value
	stored int // how many of memo are set
	work   int

	cells  []value // free ones, for bags
	tuples []vector
	bags   []bag
	times  []time.Time
	nodes  []member
	state  attrs
}

// run executes everything up to STOP. The error is about the opcode at the
// returned offset.
func (m *machine) run() (start int, err error) {
	if err := m.begin(); err != nil {
		return 0, err
	}
	for {
		start = m.pos
		if start == len(m.data) {
			return start, errors.New("the pickle ends without STOP: it is cut off")
		}
		m.pos++
		op := m.data[start]
		if op == opStop {
			return start, m.stop()
		}
		if err := m.step(op, start); err != nil {
			return start, err
		}
	}
}

func (m *machine) begin() error {
	if len(m.data) == 0 {
		return errors.New("it is empty")
	}
	if len(m.data) < 2 || m.data[0] != opProto {
		return fmt.Errorf("%.20q begins no pickle of protocol 2 to 5", m.data)
	}
	if m.proto = m.data[1]; m.proto < 2 || m.proto > 5 {
		return fmt.Errorf("protocol %d; known are 2 to 5", m.proto)
	}
	m.pos = 2
	return nil
}

func (m *machine) stop() error {
	if len(m.stack) != 1 || len(m.marks) != 0 {
		return fmt.Errorf("%d values and %d marks are left, want one value", len(m.stack), len(m.marks))
	}
	if k := m.stack[0].kind; k != state {
		return fmt.Errorf("it holds %v, not a rendezvous state", k)
	}
	return nil
}

func (m *machine) step(op byte, start int) error {
	switch op {
	case opMark:
		if len(m.marks) >= maxMarks {
			return fmt.Errorf("more than %d marks are open: nested too deep", maxMarks)
		}
		m.marks = append(m.marks, len(m.stack))
		return nil
	case opNone:
		return m.push(none, 0)
	case opNewTrue:
		return m.push(yes, 0)
	case opNewFalse:
		return m.push(no, 0)
	case opBinInt1, opBinInt2, opBinInt:
		return m.int(op)
	case opShortBinUnicode, opBinUnicode, opShortBinBytes:
		return m.literal(op, start)
	case opEmptyTuple:
		return m.push(empty, 0)
	case opEmptyDict:
		return m.newBag(dict)
	case opEmptySet:
		return m.newBag(set)
	case opEmptyList:
		return m.newBag(list)
	case opTuple1, opTuple2, opTuple3:
		return m.tuple(int(op-opTuple1) + 1)
	case opSetItem:
		return m.addPopped(dict, 2)
	case opAppend:
		return m.addPopped(list, 1)
	case opSetItems:
		return m.addMarked(dict)
	case opAddItems:
		return m.addMarked(set)
	case opAppends:
		return m.addMarked(list)
	case opGlobal:
		return m.namedGlobal()
	case opStackGlobal:
		return m.stackGlobal()
	case opNewObj:
		return m.newObject()
	case opBuild:
		return m.build()
	case opReduce:
		return m.reduce()
	case opMemoize:
		return m.put(uint32(m.stored))
	case opBinPut, opLongBinPut, opBinGet, opLongBinGet:
		return m.indexed(op)
	case opFrame:
		return m.frame()
	case opProto:
		return errors.New("a second protocol number")
	}
	return errors.New("no rendezvous state has this opcode")
}

// take returns the next n bytes.
func (m *machine) take(n uint32) ([]byte, error) {
	rest := m.data[m.pos:]
	if uint64(n) > uint64(len(rest)) {
		return nil, fmt.Errorf("%d bytes follow where %d are announced", len(rest), n)
	}
	m.pos += int(n)
	return rest[:n], nil
}

// uint reads a little-endian number of one, two or four bytes.
func (m *machine) uint(size uint32) (uint32, error) {
	b, err := m.take(size)
	if err != nil {
		return 0, err
	}
	switch size {
	case 1:
		return uint32(b[0]), nil
	case 2:
		return uint32(binary.LittleEndian.Uint16(b)), nil
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (m *machine) int(op byte) error {
	size := uint32(1)
	switch op {
	case opBinInt2:
		size = 2
	case opBinInt:
		size = 4
	}
	n, err := m.uint(size)
	if err != nil {
		return err
	}
	return m.push(number, n)
}

// literal reads a str or bytes. They stay where they are.
func (m *machine) literal(op byte, start int) error {
	size := uint32(1)
	if op == opBinUnicode {
		size = 4
	}
	n, err := m.uint(size)
	if err != nil {
		return err
	}
	b, err := m.take(n)
	if err != nil {
		return err
	}
	if op == opShortBinBytes {
		return m.push(octets, uint32(start))
	}
	if !utf8.Valid(b) {
		return fmt.Errorf("the str %.60q is not UTF-8", b)
	}
	return m.push(text, uint32(start))
}

func (m *machine) frame() error {
	b, err := m.take(8)
	if err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b); n > uint64(len(m.data)-m.pos) {
		return fmt.Errorf("%d bytes follow where %d are announced", len(m.data)-m.pos, n)
	}
	return nil
}

func (m *machine) push(k kind, n uint32) error {
	if len(m.stack) >= maxStack {
		return fmt.Errorf("more than %d values on the stack", maxStack)
	}
	m.stack = append(m.stack, value{k, n})
	return nil
}

var errShort = errors.New("too few values on the stack")

// pop takes n values off, which stay valid until the next push. None of them may
// be below the last mark.
func (m *machine) pop(n int) ([]value, error) {
	height := len(m.stack) - n
	if height < m.floor() {
		return nil, errShort
	}
	top := m.stack[height:]
	m.stack = m.stack[:height]
	return top, nil
}

// peek returns the value on top.
func (m *machine) peek() (value, error) {
	if len(m.stack) <= m.floor() {
		return value{}, errShort
	}
	return m.stack[len(m.stack)-1], nil
}

func (m *machine) floor() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

// spend accounts for work that the size of the input alone does not bound, such
// as reading one dict many times.
func (m *machine) spend(n int) error {
	if m.work += n; m.work > maxWork {
		return errors.New("it takes more work than a rendezvous state can need")
	}
	return nil
}

var errMany = fmt.Errorf("more than %d objects of one kind", maxEach)

func (m *machine) newBag(k kind) error {
	if len(m.bags) >= maxEach {
		return errMany
	}
	m.bags = append(m.bags, bag{})
	return m.push(k, uint32(len(m.bags)-1))
}

func (m *machine) tuple(n int) error {
	items, err := m.pop(n)
	if err != nil {
		return err
	}
	if len(m.tuples) >= maxEach {
		return errMany
	}
	t := vector{n: uint8(n), hashable: true}
	for i, v := range items {
		t.items[i] = v
		t.hashable = t.hashable && m.hashable(v)
	}
	m.tuples = append(m.tuples, t)
	return m.push(tuple, uint32(len(m.tuples)-1))
}

// tupleOf returns the items of a tuple.
func (m *machine) tupleOf(v value) (items []value, ok bool) {
	if v.kind != tuple {
		return nil, v.kind == empty
	}
	t := &m.tuples[v.n]
	return t.items[:t.n], true
}

// hashable says whether Python could put v into a set at this moment.
func (m *machine) hashable(v value) bool {
	switch v.kind {
	case dict, set, list:
		return false
	case tuple:
		return m.tuples[v.n].hashable
	case node:
		return m.nodes[v.n].complete
	}
	return true
}

// addPopped adds the n values on top to the bag below them.
func (m *machine) addPopped(into kind, n int) error {
	items, err := m.pop(n)
	if err != nil {
		return err
	}
	return m.add(into, items)
}

// addMarked adds the values above the last mark to the bag below it.
func (m *machine) addMarked(into kind) error {
	if len(m.marks) == 0 {
		return errors.New("there is no MARK before it")
	}
	height := m.floor()
	items := m.stack[height:]
	m.stack, m.marks = m.stack[:height], m.marks[:len(m.marks)-1]
	return m.add(into, items)
}

// add adds items to the bag on top of the stack.
func (m *machine) add(into kind, items []value) error {
	top, err := m.peek()
	if err != nil {
		return err
	}
	if top.kind != into {
		return fmt.Errorf("items for %v, not %v", top.kind, into)
	}
	step := 1
	if into == dict {
		step = 2
	}
	if len(items)%step != 0 {
		return errors.New("a key without a value")
	}
	if into != list {
		for i := 0; i < len(items); i += step {
			if v := items[i]; !m.hashable(v) {
				return fmt.Errorf("%v as a key or member, which is mutable or has no attributes yet", v.kind)
			}
		}
	}
	b := &m.bags[top.n]
	if b.items == nil {
		b.items = m.room(len(items))
	}
	b.items = append(b.items, items...)
	return m.spend(len(items))
}

// room returns an empty slice for n values. Most bags are the attributes of a
// node, and those of many nodes share an array.
func (m *machine) room(n int) []value {
	const share = 1024
	if n > share/16 {
		return make([]value, 0, n)
	}
	if len(m.cells) < n {
		m.cells = make([]value, min(share, 64+len(m.data)/32))
	}
	cells := m.cells[:0:n]
	m.cells = m.cells[n:]
	return cells
}

// put stores the value on top in the memo.
func (m *machine) put(at uint32) error {
	v, err := m.peek()
	if err != nil {
		return err
	}
	// Picklers count from 0, so that an index is smaller than the input.
	if int64(at) >= int64(len(m.data)) {
		return fmt.Errorf("memo index %d in a pickle of %d bytes", at, len(m.data))
	}
	for int(at) >= len(m.memo) {
		m.memo = append(m.memo, value{})
	}
	if m.memo[at].kind == unset {
		m.stored++
	}
	m.memo[at] = v
	return nil
}

// indexed executes an opcode with a memo index of its own.
func (m *machine) indexed(op byte) error {
	size := uint32(1)
	if op == opLongBinPut || op == opLongBinGet {
		size = 4
	}
	at, err := m.uint(size)
	if err != nil {
		return err
	}
	if op == opBinPut || op == opLongBinPut {
		return m.put(at)
	}
	if int64(at) >= int64(len(m.memo)) || m.memo[at].kind == unset {
		return fmt.Errorf("nothing was stored at memo index %d", at)
	}
	v := m.memo[at]
	return m.push(v.kind, v.n)
}

// namedGlobal reads two lines, the names of a module and of what is in it.
func (m *machine) namedGlobal() error {
	var names [2][]byte
	for i := range names {
		// No line that is longer names anything known.
		end := bytes.IndexByte(m.data[m.pos:min(len(m.data), m.pos+256)], '\n')
		if end < 0 {
			return errors.New("a name of more than 255 bytes, or cut off")
		}
		names[i] = m.data[m.pos : m.pos+end]
		m.pos += end + 1
	}
	return m.global(names[0], names[1])
}

func (m *machine) stackGlobal() error {
	names, err := m.pop(2)
	if err != nil {
		return err
	}
	if names[0].kind != text || names[1].kind != text {
		return fmt.Errorf("%v and %v as names", names[0].kind, names[1].kind)
	}
	return m.global(m.bytesAt(names[0].n), m.bytesAt(names[1].n))
}

// global pushes what a name stands for. Comparing with string(b) copies nothing.
func (m *machine) global(mod, name []byte) error {
	switch string(mod) {
	case module:
		switch string(name) {
		case "_RendezvousState":
			return m.push(class, classState)
		case "_NodeDesc":
			return m.push(class, classNode)
		}
	case "datetime":
		switch string(name) {
		case "datetime":
			return m.push(class, classDatetime)
		case "timezone":
			return m.push(class, classTimezone)
		case "timedelta":
			return m.push(class, classTimedelta)
		}
	case "builtins", "__builtin__":
		if m.proto < 4 && string(name) == "set" {
			return m.push(class, funcSet)
		}
	case "_codecs":
		if m.proto < 4 && string(name) == "encode" {
			return m.push(class, funcEncode)
		}
	}
	return fmt.Errorf("it wants %.60q of module %.60q, which no rendezvous state has", name, mod)
}
