// Package pickle reads and writes the rendezvous state as PyTorch's agents keep
// it: as a Python pickle, in base64.
//
// A pickle is a program for a small stack machine that can call anything. Decode
// runs only what builds such a state, of a few classes whose names it knows, and
// refuses everything else; it makes nothing but data and calls nothing.
package pickle

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/muster-run/muster/rendezvous"
)

// Limits of what Decode reads.
const (
	MaxSize  = 8 << 20 // bytes of a pickle
	MaxNodes = 100000
	maxStack = 4 * MaxNodes
	maxMemo  = 64 * MaxNodes
)

// The opcodes that are understood. Source: pickletools.py.
const (
	opMark            = '('
	opStop            = '.'
	opNone            = 'N'
	opReduce          = 'R'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinUnicode      = 'X'
	opAppend          = 'a'
	opBuild           = 'b'
	opGlobal          = 'c'
	opEmptyDict       = '}'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opEmptyList       = ']'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opSetItems        = 'u'
	opEmptyTuple      = ')'
	opProto           = 0x80
	opNewObj          = 0x81
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opShortBinBytes   = 'C'
	opShortBinUnicode = 0x8c
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
)

// An Error says where a pickle is not one of a rendezvous state.
type Error struct {
	Offset int // of the opcode
	Op     byte
	Reason string
}

func (e *Error) Error() string {
	return fmt.Sprintf("not a rendezvous state: opcode 0x%02x at byte %d: %s", e.Op, e.Offset, e.Reason)
}

// An OldStateError says that a state is one of PyTorch 1.13 or older, which no
// newer agent can use.
type OldStateError struct {
	State *rendezvous.State // what it says, for display
}

func (e *OldStateError) Error() string {
	return "the rendezvous state was written by PyTorch 1.13 or older; use the same release of PyTorch, or muster, on every host"
}

// DecodeText reads what the key holds. For the sentinel it returns nil and no error.
func DecodeText(text []byte) (*rendezvous.State, error) {
	if string(text) == Sentinel {
		return nil, nil
	}
	if len(text) > base64.StdEncoding.EncodedLen(MaxSize) {
		return nil, fmt.Errorf("a rendezvous state of %d bytes, more than %d", len(text), base64.StdEncoding.EncodedLen(MaxSize))
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(data, text)
	if err != nil {
		return nil, fmt.Errorf("rendezvous state %.40q: %w", text, err)
	}
	return Decode(data[:n])
}

// Decode reads a pickled state of protocol 2 to 5. The error is an *Error or an
// *OldStateError.
func Decode(data []byte) (*rendezvous.State, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("a rendezvous state of %d bytes, more than %d", len(data), MaxSize)
	}
	m := machine{data: data}
	for !m.stopped {
		start := m.pos
		op, err := m.byte()
		if err == nil {
			err = m.step(op, start)
		}
		if err != nil {
			return nil, &Error{start, op, err.Error()}
		}
	}
	obj, ok := m.stack[0].(*object)
	if !ok || obj.class != classState {
		return nil, &Error{m.pos - 1, opStop, "it is no state"}
	}
	state, err := obj.state()
	if err != nil {
		return nil, &Error{m.pos - 1, opStop, err.Error()}
	}
	if obj.old {
		return nil, &OldStateError{state}
	}
	return state, nil
}

// What may be on the stack, beside nil, bool, int, string, []byte and time.Time.
type (
	global uint8
	tuple  []any
	list   struct{ items []any }
	dict   struct{ keys, values []any }
	set    struct{ items []any }
	delta  struct{} // timedelta(0, 0, 0)
	zone   struct{} // UTC
	naive  struct{ time.Time }
	object struct {
		class global
		attrs map[string]any
		node  rendezvous.Node // of a built node
		old   bool
	}
)

const (
	classState global = iota
	classNode
	classDatetime
	classTimezone
	classTimedelta
	funcSet
	funcEncode
)

var errTypes = errors.New("operands of the wrong types")

// machine runs a pickle.
type machine struct {
	data    []byte
	pos     int
	stack   []any
	memo    []any
	put     map[uint32]any // by explicit index
	marks   []int
	nodes   int
	stopped bool
	proto   bool
}

func (m *machine) byte() (byte, error) {
	if m.pos >= len(m.data) {
		return 0, errors.New("the pickle is cut off")
	}
	m.pos++
	return m.data[m.pos-1], nil
}

func (m *machine) bytes(n int) ([]byte, error) {
	if n < 0 || n > len(m.data)-m.pos {
		return nil, fmt.Errorf("%d bytes wanted, %d left", n, len(m.data)-m.pos)
	}
	m.pos += n
	return m.data[m.pos-n : m.pos], nil
}

// uint reads a little-endian number of size bytes.
func (m *machine) uint(size int) (uint64, error) {
	b, err := m.bytes(size)
	if err != nil {
		return 0, err
	}
	var n uint64
	for i := len(b) - 1; i >= 0; i-- {
		n = n<<8 | uint64(b[i])
	}
	return n, nil
}

func (m *machine) push(v any) error {
	if len(m.stack) >= maxStack {
		return errors.New("too much on the stack")
	}
	m.stack = append(m.stack, v)
	return nil
}

// pop takes n values off, none of them below the last mark.
func (m *machine) pop(n int) ([]any, error) {
	floor := 0
	if len(m.marks) > 0 {
		floor = m.marks[len(m.marks)-1]
	}
	if len(m.stack)-n < floor {
		return nil, errors.New("too little on the stack")
	}
	top := m.stack[len(m.stack)-n:]
	m.stack = m.stack[:len(m.stack)-n]
	return top, nil
}

// popMark takes everything off down to the last mark.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, errors.New("no mark")
	}
	at := m.marks[len(m.marks)-1]
	m.marks = m.marks[:len(m.marks)-1]
	top := m.stack[at:]
	m.stack = m.stack[:at]
	return top, nil
}

// top returns the value on top.
func (m *machine) top() (any, error) {
	if len(m.stack) == 0 || len(m.marks) > 0 && m.marks[len(m.marks)-1] == len(m.stack) {
		return nil, errors.New("too little on the stack")
	}
	return m.stack[len(m.stack)-1], nil
}

func (m *machine) step(op byte, start int) error {
	if !m.proto && op != opProto {
		return errors.New("it does not begin with a protocol number")
	}
	switch op {
	case opProto:
		v, err := m.byte()
		if err != nil {
			return err
		}
		if start != 0 || v < 2 || v > 5 {
			return fmt.Errorf("protocol %d", v)
		}
		m.proto = true
		return nil
	case opFrame:
		n, err := m.uint(8)
		if err == nil && n > uint64(len(m.data)-m.pos) {
			err = fmt.Errorf("a frame of %d bytes, %d left", n, len(m.data)-m.pos)
		}
		return err
	case opStop:
		if len(m.stack) != 1 || len(m.marks) != 0 {
			return fmt.Errorf("%d values are left", len(m.stack))
		}
		m.stopped = true
		return nil
	case opMark:
		if len(m.marks) >= 64 {
			return errors.New("nested too deep")
		}
		m.marks = append(m.marks, len(m.stack))
		return nil
	case opNone:
		return m.push(nil)
	case opNewTrue:
		return m.push(true)
	case opNewFalse:
		return m.push(false)
	case opEmptyTuple:
		return m.push(tuple(nil))
	case opEmptyDict:
		return m.push(&dict{})
	case opEmptySet:
		return m.push(&set{})
	case opEmptyList:
		return m.push(&list{})
	case opBinInt1, opBinInt2, opBinInt:
		return m.int(op)
	case opShortBinUnicode, opBinUnicode:
		return m.string(op)
	case opShortBinBytes:
		n, err := m.byte()
		if err != nil {
			return err
		}
		b, err := m.bytes(int(n))
		if err != nil {
			return err
		}
		return m.push(append([]byte{}, b...))
	case opTuple1, opTuple2, opTuple3:
		items, err := m.pop(int(op-opTuple1) + 1)
		if err != nil {
			return err
		}
		return m.push(append(tuple{}, items...))
	case opGlobal, opStackGlobal:
		return m.global(op)
	case opReduce, opNewObj, opBuild, opSetItem, opAppend:
		return m.two(op)
	case opSetItems, opAddItems, opAppends:
		return m.many(op)
	case opMemoize, opBinPut, opLongBinPut, opBinGet, opLongBinGet:
		return m.remember(op)
	}
	return errors.New("no state needs this opcode")
}

func (m *machine) int(op byte) error {
	size := 1
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
	if op == opBinInt {
		return m.push(int(int32(n)))
	}
	return m.push(int(n))
}

func (m *machine) string(op byte) error {
	size := 1
	if op == opBinUnicode {
		size = 4
	}
	n, err := m.uint(size)
	if err != nil {
		return err
	}
	if n > uint64(len(m.data)-m.pos) {
		return fmt.Errorf("a string of %d bytes, %d left", n, len(m.data)-m.pos)
	}
	b, err := m.bytes(int(n))
	if err != nil {
		return err
	}
	if !utf8.Valid(b) {
		return errors.New("a string that is not UTF-8")
	}
	return m.push(string(b))
}

// names are the globals that may be named.
var names = map[[2]string]global{
	{module, "_RendezvousState"}: classState,
	{module, "_NodeDesc"}:        classNode,
	{"datetime", "datetime"}:     classDatetime,
	{"datetime", "timezone"}:     classTimezone,
	{"datetime", "timedelta"}:    classTimedelta,
	{"builtins", "set"}:          funcSet,
	{"__builtin__", "set"}:       funcSet,
	{"_codecs", "encode"}:        funcEncode,
}

func (m *machine) global(op byte) error {
	var name [2]string
	if op == opGlobal {
		for i := range name {
			line, err := m.line()
			if err != nil {
				return err
			}
			name[i] = line
		}
	} else {
		two, err := m.pop(2)
		if err != nil {
			return err
		}
		for i := range name {
			s, ok := two[i].(string)
			if !ok {
				return errTypes
			}
			name[i] = s
		}
	}
	g, ok := names[name]
	if !ok {
		return fmt.Errorf("it names %.60q of module %.60q, which no state needs", name[1], name[0])
	}
	return m.push(g)
}

func (m *machine) line() (string, error) {
	for i := m.pos; i < len(m.data) && i < m.pos+256; i++ {
		if m.data[i] == '\n' {
			s := string(m.data[m.pos:i])
			m.pos = i + 1
			return s, nil
		}
	}
	return "", errors.New("a name without an end")
}

// two performs what takes two values, or three.
func (m *machine) two(op byte) error {
	n := 2
	if op == opSetItem {
		n = 3
	}
	v, err := m.pop(n)
	if err != nil {
		return err
	}
	switch op {
	case opReduce:
		r, err := m.reduce(v[0], v[1])
		if err != nil {
			return err
		}
		return m.push(r)
	case opNewObj:
		class, ok := v[0].(global)
		args, tup := v[1].(tuple)
		if !ok || !tup || len(args) != 0 || class != classState && class != classNode {
			return errors.New("an object of a class or with arguments that no state needs")
		}
		return m.push(&object{class: class})
	case opSetItem:
		d, ok := v[0].(*dict)
		if !ok {
			return errTypes
		}
		d.keys, d.values = append(d.keys, v[1]), append(d.values, v[2])
		return m.push(d)
	case opAppend:
		l, ok := v[0].(*list)
		if !ok {
			return errTypes
		}
		l.items = append(l.items, v[1])
		return m.push(l)
	}
	obj, ok := v[0].(*object)
	d, isDict := v[1].(*dict)
	if !ok || !isDict || obj.attrs != nil {
		return errTypes
	}
	if err := obj.build(d); err != nil {
		return err
	}
	if obj.class == classNode {
		if m.nodes++; m.nodes > 4*MaxNodes {
			return errors.New("too many nodes")
		}
	}
	return m.push(obj)
}

// many performs what takes everything down to the mark.
func (m *machine) many(op byte) error {
	v, err := m.popMark()
	if err != nil {
		return err
	}
	into, err := m.top()
	if err != nil {
		return err
	}
	switch c := into.(type) {
	case *dict:
		if op != opSetItems || len(v)%2 != 0 {
			return errTypes
		}
		for i := 0; i < len(v); i += 2 {
			c.keys, c.values = append(c.keys, v[i]), append(c.values, v[i+1])
		}
		return nil
	case *set:
		if op == opAddItems {
			c.items = append(c.items, v...)
			return nil
		}
	case *list:
		if op == opAppends {
			c.items = append(c.items, v...)
			return nil
		}
	}
	return errTypes
}

func (m *machine) remember(op byte) error {
	size := 1
	if op == opLongBinPut || op == opLongBinGet {
		size = 4
	}
	switch op {
	case opMemoize:
		v, err := m.top()
		if err == nil && len(m.memo) >= maxMemo {
			err = errors.New("too much to remember")
		}
		if err == nil {
			m.memo = append(m.memo, v)
		}
		return err
	case opBinPut, opLongBinPut:
		n, err := m.uint(size)
		if err != nil {
			return err
		}
		v, err := m.top()
		if err != nil {
			return err
		}
		if m.put == nil {
			m.put = map[uint32]any{}
		}
		m.put[uint32(n)] = v
		return nil
	}
	n, err := m.uint(size)
	if err != nil {
		return err
	}
	if v, ok := m.put[uint32(n)]; ok {
		return m.push(v)
	}
	if n >= uint64(len(m.memo)) {
		return fmt.Errorf("nothing was remembered as %d", n)
	}
	return m.push(m.memo[n])
}

// reduce makes what a call would: a time, a set, bytes.
func (m *machine) reduce(f, args any) (any, error) {
	g, ok := f.(global)
	t, isTuple := args.(tuple)
	if !ok || !isTuple {
		return nil, errTypes
	}
	bad := errors.New("a call that no state needs")
	switch g {
	case classTimedelta:
		if len(t) == 3 && t[0] == 0 && t[1] == 0 && t[2] == 0 {
			return delta{}, nil
		}
		return nil, errors.New("a time zone that is not UTC")
	case classTimezone:
		if len(t) == 1 {
			if _, ok := t[0].(delta); ok {
				return zone{}, nil
			}
		}
	case classDatetime:
		if len(t) != 1 && len(t) != 2 {
			return nil, bad
		}
		b, ok := t[0].([]byte)
		if !ok {
			return nil, bad
		}
		at, err := datetime(b)
		if err != nil {
			return nil, err
		}
		if len(t) == 1 {
			return naive{at}, nil
		}
		if _, ok := t[1].(zone); ok {
			return at, nil
		}
	case funcSet:
		if len(t) == 1 {
			if l, ok := t[0].(*list); ok {
				return &set{items: l.items}, nil
			}
		}
	case funcEncode:
		if len(t) == 2 && t[1] == "latin1" {
			if s, ok := t[0].(string); ok {
				return latin1(s)
			}
		}
	}
	return nil, bad
}

func latin1(s string) ([]byte, error) {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 255 {
			return nil, errors.New("text that is not Latin-1")
		}
		b = append(b, byte(r))
	}
	return b, nil
}

func datetime(b []byte) (time.Time, error) {
	if len(b) != 10 {
		return time.Time{}, fmt.Errorf("a time of %d bytes", len(b))
	}
	year, month := int(binary.BigEndian.Uint16(b)), time.Month(b[2]&0x7f)
	us := int(b[7])<<16 | int(b[8])<<8 | int(b[9])
	if year < 1 || year > 9999 || b[4] > 23 || b[5] > 59 || b[6] > 59 || us > 999999 {
		return time.Time{}, errors.New("no such time")
	}
	at := time.Date(year, month, int(b[3]), int(b[4]), int(b[5]), int(b[6]), us*1000, time.UTC)
	if at.Month() != month || at.Day() != int(b[3]) {
		return time.Time{}, errors.New("no such day")
	}
	return at, nil
}

// build gives an object its attributes.
func (o *object) build(d *dict) error {
	o.attrs = make(map[string]any, len(d.keys))
	for i, k := range d.keys {
		name, ok := k.(string)
		if !ok {
			return errTypes
		}
		o.attrs[name] = d.values[i]
	}
	if o.class != classNode {
		return nil
	}
	addr, ok := o.attrs["addr"].(string)
	if !ok {
		if addr, o.old = o.attrs["fqdn"].(string); !o.old {
			return errors.New("a node without an address")
		}
	}
	pid, ok := o.attrs["pid"].(int)
	local, ok2 := o.attrs["local_id"].(int)
	if !ok || !ok2 {
		return errors.New("a node without pid or local_id")
	}
	o.node = rendezvous.Node{Addr: addr, PID: pid, LocalID: local}
	return nil
}

// state reads the attributes of a state.
func (o *object) state() (*rendezvous.State, error) {
	s := rendezvous.NewState()
	var ok [4]bool
	s.Round, ok[0] = o.attrs["round"].(int)
	s.Complete, ok[1] = o.attrs["complete"].(bool)
	s.Closed, ok[2] = o.attrs["closed"].(bool)
	deadline, there := o.attrs["deadline"]
	if deadline != nil {
		at, err := o.time(deadline)
		if err != nil {
			return nil, fmt.Errorf("deadline: %w", err)
		}
		s.Deadline = at
	}
	ok[3] = there
	for i, name := range []string{"round", "complete", "closed", "deadline"} {
		if !ok[i] {
			return nil, fmt.Errorf("no %s, or of the wrong type", name)
		}
	}
	err := o.eachItem("participants", func(n rendezvous.Node, v any) error {
		rank, ok := v.(int)
		if !ok {
			return errTypes
		}
		s.Participants[n] = rank
		return nil
	})
	if err == nil {
		err = o.eachItem("last_heartbeats", func(n rendezvous.Node, v any) error {
			at, err := o.time(v)
			s.LastHeartbeats[n] = at
			return err
		})
	}
	if err == nil {
		err = o.eachMember("wait_list", s.WaitList)
	}
	if _, there := o.attrs["redundancy_list"]; err == nil && !there {
		o.old = true
	} else if err == nil {
		err = o.eachMember("redundancy_list", s.RedundancyList)
	}
	if n := len(s.Participants) + len(s.WaitList) + len(s.RedundancyList) + len(s.LastHeartbeats); err == nil && n > 4*MaxNodes {
		err = errors.New("too many nodes")
	}
	return s, err
}

func (o *object) time(v any) (time.Time, error) {
	switch at := v.(type) {
	case time.Time:
		return at, nil
	case naive:
		o.old = true
		return at.Time, nil
	}
	return time.Time{}, errors.New("no time")
}

func (o *object) nodeOf(v any) (rendezvous.Node, error) {
	n, ok := v.(*object)
	if !ok || n.class != classNode || n.attrs == nil {
		return rendezvous.Node{}, errors.New("no node")
	}
	o.old = o.old || n.old
	return n.node, nil
}

func (o *object) eachItem(name string, f func(rendezvous.Node, any) error) error {
	d, ok := o.attrs[name].(*dict)
	if !ok {
		return fmt.Errorf("no %s, or no dict", name)
	}
	for i, k := range d.keys {
		n, err := o.nodeOf(k)
		if err == nil {
			err = f(n, d.values[i])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (o *object) eachMember(name string, into rendezvous.Set) error {
	s, ok := o.attrs[name].(*set)
	if !ok {
		return fmt.Errorf("no %s, or no set", name)
	}
	for _, k := range s.items {
		n, err := o.nodeOf(k)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		into.Add(n)
	}
	return nil
}
