package pickle

import (
	"bytes"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Opcodes that more than steps has. Source: pickletools.py.
const (
	opStop            = '.'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinUnicode      = 'X'
	opEmptyDict       = '}'
	opEmptyList       = ']'
	opProto           = 0x80
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a // written only: an int that needs more than 32 bits
	opShortBinUnicode = 0x8c
	opEmptySet        = 0x8f
)

// What the stack and the memo hold, beside bool, int and string.
type (
	none   struct{}
	octets string // bytes
	global string // what a name of a module stands for
	tuple  []any
	bag    struct {
		kind  byte  // opEmptyDict, opEmptySet or opEmptyList
		items []any // a dict's keys and values alternate
	}
	delta   struct{} // timedelta(0, 0, 0)
	utc     struct{} // timezone(timedelta(0, 0, 0))
	instant struct {
		time.Time
		naive bool // it had no zone
	}
	member struct { // a node
		state.Node
		built, fqdn bool
	}
	root struct{ fields map[string]any } // the state, of which there is one at most
)

const (
	classState     global = module + " _RendezvousState"
	classNode      global = module + " _NodeDesc"
	classDatetime  global = "datetime datetime"
	classTimezone  global = "datetime timezone"
	classTimedelta global = "datetime timedelta"
	funcSet        global = "builtins set"
	funcEncode     global = "_codecs encode"
)

var globals = map[[2]string]any{
	{module, "_RendezvousState"}: classState, {module, "_NodeDesc"}: classNode,
	{"datetime", "datetime"}: classDatetime, {"datetime", "timezone"}: classTimezone,
	{"datetime", "timedelta"}: classTimedelta,
	{"builtins", "set"}:       funcSet, {"__builtin__", "set"}: funcSet, {"_codecs", "encode"}: funcEncode,
}

// words are the strs that every pickle has, made once.
var words = func() map[string]any {
	m := map[string]any{}
	for _, s := range []string{
		"addr", "fqdn", "pid", "local_id", "round", "complete", "deadline", "closed", "participants", "wait_list",
		"redundancy_list", "last_heartbeats", module, "_RendezvousState", "_NodeDesc", "datetime", "timezone", "timedelta",
	} {
		m[s] = s
	}
	return m
}()

// A decoder runs a pickle. After the first error its methods return zero values, and
// what they do does not count.
//
// A pickle is a program for a machine with a stack and a memo, and may come from anybody who reaches the
// store. This machine makes the values above and no others. It calls nothing: a name stands for one of
// globals, whose calls are cases of reduce. Every step pays for its time and memory (spend), as a value in
// the memo may be used any number of times.
type decoder struct {
	data  []byte
	pos   int
	err   error
	work  int
	stack []any
	marks []int // heights of the stack
	memo  []any
	root  *root

	fqdn, naive, unlisted bool // how the state differs from one of today
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// spend accounts for work and memory, so that a small input cannot stand for much.
func (d *decoder) spend(n int) {
	if d.work += n; d.work > maxWork {
		d.fail("it takes more work than a rendezvous state can need")
	}
}

// run executes everything up to STOP. If there is an error it is about the opcode at
// the returned offset.
func (d *decoder) run() (start int) {
	switch {
	case len(d.data) == 0:
		d.fail("it is empty")
	case len(d.data) < 2 || d.data[0] != opProto:
		d.fail("%.20q begins no pickle of protocol 2 to 5", d.data)
	case d.data[1] < 2 || d.data[1] > 5:
		d.fail("protocol %d; known are 2 to 5", d.data[1])
	}
	for d.pos = 2; d.err == nil; {
		if start = d.pos; start == len(d.data) {
			d.fail("the pickle ends without STOP: it is cut off")
			break
		}
		d.pos++
		if d.data[start] == opStop {
			if root, ok := d.pop().(*root); !ok || root.fields == nil || len(d.stack)+len(d.marks) > 0 {
				d.fail("what it ends with is not a rendezvous state")
			}
			break
		}
		d.spend(1)
		if step := steps[d.data[start]]; step != nil {
			step(d)
		} else {
			d.fail("no rendezvous state has the opcode %q", string(d.data[start:d.pos]))
		}
	}
	return start
}

// steps execute an opcode each. Source: _Unpickler.dispatch in pickle.py.
var steps = [256]func(d *decoder){
	'(':               func(d *decoder) { d.spend(1); d.marks = append(d.marks, len(d.stack)) }, // MARK
	'N':               func(d *decoder) { d.push(none{}) },                                      // NONE
	opNewTrue:         func(d *decoder) { d.push(true) },
	opNewFalse:        func(d *decoder) { d.push(false) },
	opBinInt1:         func(d *decoder) { d.push(int(d.number(1))) },
	opBinInt2:         func(d *decoder) { d.push(int(d.number(2))) },
	opBinInt:          func(d *decoder) { d.push(int(int32(d.number(4)))) },
	opShortBinUnicode: func(d *decoder) { d.str(d.take(d.number(1))) },
	opBinUnicode:      func(d *decoder) { d.str(d.take(d.number(4))) },
	'C':               func(d *decoder) { d.push(octets(d.take(d.number(1)))) },    // SHORT_BINBYTES
	')':               func(d *decoder) { d.push(tuple(nil)) },                     // EMPTY_TUPLE
	0x85:              func(d *decoder) { d.make(tuple(slices.Clone(d.popN(1)))) }, // TUPLE1
	0x86:              func(d *decoder) { d.make(tuple(slices.Clone(d.popN(2)))) }, // TUPLE2
	0x87:              func(d *decoder) { d.make(tuple(slices.Clone(d.popN(3)))) }, // TUPLE3
	opEmptyDict:       func(d *decoder) { d.make(&bag{kind: opEmptyDict}) },
	opEmptySet:        func(d *decoder) { d.make(&bag{kind: opEmptySet}) },
	opEmptyList:       func(d *decoder) { d.make(&bag{kind: opEmptyList}) },
	's':               func(d *decoder) { d.add(opEmptyDict, d.popN(2)) },     // SETITEM
	'a':               func(d *decoder) { d.add(opEmptyList, d.popN(1)) },     // APPEND
	'u':               func(d *decoder) { d.add(opEmptyDict, d.popMarked()) }, // SETITEMS
	0x90:              func(d *decoder) { d.add(opEmptySet, d.popMarked()) },  // ADDITEMS
	'e':               func(d *decoder) { d.add(opEmptyList, d.popMarked()) }, // APPENDS
	0x94:              func(d *decoder) { d.put(uint64(len(d.memo))) },        // MEMOIZE
	'q':               func(d *decoder) { d.put(d.number(1)) },                // BINPUT
	'r':               func(d *decoder) { d.put(d.number(4)) },                // LONG_BINPUT
	'h':               func(d *decoder) { d.get(d.number(1)) },                // BINGET
	'j':               func(d *decoder) { d.get(d.number(4)) },                // LONG_BINGET
	0x95:              func(d *decoder) { d.room(d.number(8)) },               // FRAME
	'c':               func(d *decoder) { d.global(d.line(), d.line()) },      // GLOBAL
	0x93:              (*decoder).stackGlobal,                                 // STACK_GLOBAL
	0x81:              (*decoder).newObject,                                   // NEWOBJ
	'b':               (*decoder).build,                                       // BUILD
	'R':               (*decoder).reduce,                                      // REDUCE
}

// room reports whether n more bytes are there, as they have to be.
func (d *decoder) room(n uint64) bool {
	rest := len(d.data) - d.pos
	if n > uint64(rest) {
		d.fail("%d bytes follow where %d are announced", rest, n)
	}
	return n <= uint64(rest)
}

// take returns the next n bytes.
func (d *decoder) take(n uint64) []byte {
	if !d.room(n) {
		return nil
	}
	d.pos += int(n)
	return d.data[d.pos-int(n) : d.pos]
}

// number reads a little-endian number.
func (d *decoder) number(size uint64) (n uint64) {
	for i, b := range d.take(size) {
		n |= uint64(b) << (8 * i)
	}
	return n
}

func (d *decoder) str(b []byte) {
	if word, ok := words[string(b)]; ok {
		d.push(word)
		return
	}
	if !utf8.Valid(b) {
		d.fail("the str %.60q is not UTF-8", b)
	}
	d.push(string(b))
}

// line reads one of the two names of a GLOBAL.
func (d *decoder) line() string {
	line, _, ok := bytes.Cut(d.data[d.pos:], []byte("\n"))
	if !ok {
		d.fail("a name is cut off")
		return ""
	}
	d.pos += len(line) + 1
	return string(line)
}

func (d *decoder) stackGlobal() {
	name := want[string](d, "a name", d.pop())
	d.global(want[string](d, "a module", d.pop()), name)
}

func (d *decoder) global(mod, name string) {
	g, ok := globals[[2]string{mod, name}]
	if !ok {
		d.fail("it wants %.60q of module %.60q, which no rendezvous state has", name, mod)
	}
	d.push(g)
}

func (d *decoder) push(v any) {
	d.spend(1)
	d.stack = append(d.grow(d.stack, 1), v)
}

// make pushes what takes memory of its own.
func (d *decoder) make(v any) {
	d.spend(3)
	d.push(v)
}

// grow makes room for n values, twice the room where there is none left, and accounts for what it
// copies.
func (d *decoder) grow(s []any, n int) []any {
	if len(s)+n > cap(s) {
		d.spend(len(s))
		s = append(make([]any, 0, len(s)+max(n, len(s))), s...)
	}
	return s
}

func (d *decoder) pop() any { return d.popN(1)[0] }

// popN takes n values off, which stay valid until the next push. None of them may
// be below the last mark.
func (d *decoder) popN(n int) []any {
	height, floor := len(d.stack)-n, 0
	if len(d.marks) > 0 {
		floor = d.marks[len(d.marks)-1]
	}
	if height < floor {
		d.fail("too few values on the stack")
		return make([]any, n)
	}
	top := d.stack[height:]
	d.stack = d.stack[:height]
	return top
}

// popMarked takes off the last mark and the values above it.
func (d *decoder) popMarked() []any {
	if len(d.marks) == 0 {
		d.fail("there is no MARK before it")
		return nil
	}
	top := d.popN(len(d.stack) - d.marks[len(d.marks)-1])
	d.marks = d.marks[:len(d.marks)-1]
	return top
}

// peek returns the value on top.
func (d *decoder) peek() any {
	v := d.pop()
	if d.err == nil {
		d.stack = d.stack[:len(d.stack)+1]
	}
	return v
}

// add adds items to the bag on top of the stack.
func (d *decoder) add(into byte, items []any) {
	b := want[*bag](d, "what gets items", d.peek())
	switch {
	case d.err != nil:
	case b.kind != into || into == opEmptyDict && len(items)%2 != 0:
		d.fail("items of another kind than what gets them")
	default:
		d.spend(len(items))
		b.items = append(d.grow(b.items, len(items)), items...)
	}
}

// put stores the value on top in the memo. Picklers count from 0.
func (d *decoder) put(at uint64) {
	v := d.peek()
	d.spend(1)
	switch n := uint64(len(d.memo)); {
	case at < n:
		d.memo[at] = v
	case at == n:
		d.memo = append(d.grow(d.memo, 1), v)
	default:
		d.fail("memo index %d after %d values", at, n)
	}
}

func (d *decoder) get(at uint64) {
	if at >= uint64(len(d.memo)) {
		d.fail("nothing was stored at memo index %d", at)
		return
	}
	d.push(d.memo[at])
}

// newObject executes NEWOBJ: a class, and the arguments of its __new__.
func (d *decoder) newObject() {
	args, class := want[tuple](d, "the arguments of an object", d.pop()), want[global](d, "a class", d.pop())
	switch {
	case len(args) == 0 && class == classNode:
		d.make(&member{})
	case len(args) == 0 && class == classState && d.root == nil:
		d.root = &root{}
		d.push(d.root)
	default:
		d.fail("an object of %q that no rendezvous state makes so", class)
	}
}

// build executes BUILD: it gives the object on the stack its attributes.
func (d *decoder) build() {
	b := want[*bag](d, "attributes", d.pop())
	if d.err != nil || b.kind != opEmptyDict {
		d.fail("attributes: not in a dict")
		return
	}
	d.spend(len(b.items))
	fields := make(map[string]any, 8)
	for i := 0; i < len(b.items) && d.err == nil; i += 2 {
		name := want[string](d, "the name of an attribute", b.items[i])
		if _, known := words[name]; known {
			fields[name] = b.items[i+1]
		}
	}
	switch obj := d.peek().(type) {
	case *member:
		d.buildNode(obj, fields)
	case *root:
		if obj.fields != nil {
			d.fail("a state gets attributes twice")
		}
		obj.fields = fields
	default:
		d.fail("attributes for what is not an object")
	}
}

func (d *decoder) buildNode(n *member, fields map[string]any) {
	addr := fields["addr"]
	if addr == nil && fields["fqdn"] != nil {
		addr, n.fqdn = fields["fqdn"], true
	}
	if n.built {
		d.fail("a node gets attributes twice")
	}
	n.built, n.Addr = true, want[string](d, "a node's addr", addr)
	n.PID = want[int](d, "a node's pid", fields["pid"])
	n.LocalID = want[int](d, "a node's local_id", fields["local_id"])
	if len(n.Addr) > MaxAddr {
		d.fail("a node's addr of %d bytes, more than %d", len(n.Addr), MaxAddr)
	}
}

// reduce executes REDUCE, a call with a tuple of arguments, where it makes a
// time, a set or bytes.
func (d *decoder) reduce() {
	args, class := want[tuple](d, "the arguments of a call", d.pop()), want[global](d, "what is called", d.pop())
	var first any
	if len(args) > 0 {
		first = args[0]
	}
	switch {
	case class == classTimedelta && len(args) == 3 && first == 0 && args[1] == 0 && args[2] == 0:
		d.push(delta{})
	case class == classTimezone && len(args) == 1 && first == delta{}:
		d.push(utc{})
	case class == classDatetime && (len(args) == 1 || len(args) == 2 && args[1] == utc{}):
		b := want[octets](d, "what a datetime is made of", first)
		at, ok := datetime(b)
		if !ok {
			d.fail("a datetime of the %d bytes %.32x: there is no such time", len(b), string(b))
		}
		d.make(instant{at, len(args) == 1})
	case class == funcSet && len(args) == 1: // of a list, as protocols 2 and 3 do
		b := want[*bag](d, "what a set is made of", first)
		d.make(&bag{kind: opEmptySet})
		if d.err == nil {
			d.add(opEmptySet, b.items)
		}
	case class == funcEncode && len(args) == 2 && args[1] == "latin1": // as protocol 2 does
		d.encode(want[string](d, "what bytes are made of", first))
	case class == classTimedelta || class == classTimezone || class == classDatetime:
		d.fail("a time that is not one in UTC")
	default:
		d.fail("a call of %q that no rendezvous state makes", class)
	}
}

// encode makes bytes of a str.
func (d *decoder) encode(s string) {
	d.spend(len(s))
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			d.fail("%q in bytes", r)
		}
		b = append(b, byte(r))
	}
	d.push(octets(b))
}

// datetime reads the ten bytes of a Python datetime.
// Source: datetime.__setstate in _pydatetime.py.
func datetime(b octets) (t time.Time, ok bool) {
	if len(b) != 10 {
		return t, false
	}
	const fold = 0x80 // says which of two equal local times; UTC has none
	year, month, day := int(b[0])<<8|int(b[1]), time.Month(b[2]&^fold), int(b[3])
	micros := int(b[7])<<16 | int(b[8])<<8 | int(b[9])
	if year < 1 || year > 9999 || b[4] > 23 || b[5] > 59 || b[6] > 59 || micros > 999999 {
		return t, false
	}
	t = time.Date(year, month, day, int(b[4]), int(b[5]), int(b[6]), micros*1000, time.UTC)
	return t, t.Month() == month && t.Day() == day
}
