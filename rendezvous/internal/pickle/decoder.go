package pickle

import (
	"bytes"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Limits beside those of Decode. A store decodes what a stranger has written while it holds
// its lock, so that they are not far above what a state of MaxNodes nodes can need.
const (
	maxMarks = 64            // MARKs open at once
	maxStack = 8 * MaxNodes  // values on the stack
	maxMemo  = 8 * MaxNodes  // and in the memo
	maxEach  = 4 * MaxNodes  // nodes, as every one may be written for each collection; also times, tuples and bags
	maxWork  = 20 * MaxNodes // values and 8-byte words that are copied or looked at beside the input itself
	maxKnown = 1024          // strs that are shared
)

// What the stack and the memo hold, beside bool and int. In the memo nil is what was
// never stored.
type (
	none   struct{}
	text   string // a str
	octets string // bytes
	tuple  struct {
		items    []any
		hashable bool // when it was made
	}
	bag struct {
		kind  kind
		items []any // a dict's keys and values alternate
	}
	delta   struct{} // timedelta(0, 0, 0)
	utc     struct{} // timezone(timedelta(0, 0, 0))
	instant struct {
		time.Time
		naive bool // it had no zone
	}
	member struct { // a node: complete once BUILD has given it its attributes
		state.Node
		complete, fqdn bool
	}
	attrs struct { // the state, of which there is one at most
		complete bool
		fields   map[text]any
	}
)

type kind string

const (
	dict kind = "a dict"
	set  kind = "a set"
	list kind = "a list"
)

// A global is what a name of a module stands for.
type global int

const (
	classState global = iota
	classNode
	classDatetime
	classTimezone
	classTimedelta
	funcSet
	funcEncode
)

var globals = map[[2]text]global{
	{module, "_RendezvousState"}: classState, {module, "_NodeDesc"}: classNode,
	{"datetime", "datetime"}: classDatetime, {"datetime", "timezone"}: classTimezone, {"datetime", "timedelta"}: classTimedelta,
	{"builtins", "set"}: funcSet, {"__builtin__", "set"}: funcSet, {"_codecs", "encode"}: funcEncode,
}

// describe is Python's word for what a value is.
func describe(v any) string {
	switch v := v.(type) {
	case none:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int:
		return "an int"
	case text:
		return "a str"
	case octets:
		return "bytes"
	case *tuple:
		if len(v.items) == 0 {
			return "an empty tuple"
		}
		return "a tuple"
	case *bag:
		return string(v.kind)
	case global:
		return "a class"
	case delta:
		return "a timedelta"
	case utc:
		return "a timezone"
	case instant:
		return "a datetime"
	case *member:
		return "a node"
	case *attrs:
		return "a state"
	}
	return "nothing"
}

// A decoder runs a pickle. After the first error its methods return zero values, and
// what they do does not count.
type decoder struct {
	data  []byte
	pos   int
	proto byte
	err   error

	stack []any
	marks []int // heights of the stack
	memo  []any
	inUse int          // values in memo
	known map[text]any // strs that were read before: a state has few different ones

	state                      *attrs
	bags, tuples, times, nodes int // how many were made
	work                       int
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
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
	default:
		d.proto, d.pos = d.data[1], 2
	}
	for d.err == nil {
		if start = d.pos; start == len(d.data) {
			d.fail("the pickle ends without STOP: it is cut off")
			break
		}
		d.pos++
		if d.data[start] == opStop {
			d.stop()
			break
		}
		d.step(d.data[start])
	}
	return start
}

func (d *decoder) stop() {
	if len(d.stack) != 1 || len(d.marks) != 0 {
		d.fail("%d values and %d marks are left, want one value", len(d.stack), len(d.marks))
	} else if _, ok := d.stack[0].(*attrs); !ok {
		d.fail("it holds %s, not a rendezvous state", describe(d.stack[0]))
	}
}

func (d *decoder) step(op byte) {
	switch op {
	case opMark:
		if len(d.marks) >= maxMarks {
			d.fail("more than %d marks are open: nested too deep", maxMarks)
		}
		d.marks = append(d.marks, len(d.stack))
	case opNone:
		d.push(none{})
	case opNewTrue:
		d.push(true)
	case opNewFalse:
		d.push(false)
	case opBinInt1:
		d.push(int(d.number(1)))
	case opBinInt2:
		d.push(int(d.number(2)))
	case opBinInt:
		d.push(int(int32(d.number(4))))
	case opShortBinUnicode:
		d.str(d.take(d.number(1)))
	case opBinUnicode:
		d.str(d.take(d.number(4)))
	case opShortBinBytes:
		d.push(octets(d.take(d.number(1))))
	case opEmptyTuple:
		d.push(&tuple{hashable: true})
	case opTuple1, opTuple2, opTuple3:
		d.newTuple(d.pop(int(op-opTuple1) + 1))
	case opEmptyDict:
		d.newBag(dict)
	case opEmptySet:
		d.newBag(set)
	case opEmptyList:
		d.newBag(list)
	case opSetItem:
		d.add(dict, d.pop(2))
	case opAppend:
		d.add(list, d.pop(1))
	case opSetItems:
		d.add(dict, d.popMarked())
	case opAddItems:
		d.add(set, d.popMarked())
	case opAppends:
		d.add(list, d.popMarked())
	case opGlobal:
		mod := d.line()
		d.global(mod, d.line())
	case opStackGlobal:
		names := d.pop(2)
		mod, ok := names[0].(text)
		name, ok2 := names[1].(text)
		if !ok || !ok2 {
			d.fail("%s and %s as names", describe(names[0]), describe(names[1]))
		}
		d.global(mod, name)
	case opNewObj:
		d.newObject()
	case opBuild:
		d.build()
	case opReduce:
		d.reduce()
	case opMemoize:
		d.put(uint64(d.inUse))
	case opBinPut:
		d.put(d.number(1))
	case opLongBinPut:
		d.put(d.number(4))
	case opBinGet:
		d.get(d.number(1))
	case opLongBinGet:
		d.get(d.number(4))
	case opFrame:
		if n, rest := d.number(8), len(d.data)-d.pos; n > uint64(rest) {
			d.fail("%d bytes follow where %d are announced", rest, n)
		}
	case opProto:
		d.fail("a second protocol number")
	default:
		d.fail("no rendezvous state has this opcode")
	}
}

// take returns the next n bytes.
func (d *decoder) take(n uint64) []byte {
	rest := d.data[d.pos:]
	if n > uint64(len(rest)) {
		d.fail("%d bytes follow where %d are announced", len(rest), n)
		return nil
	}
	d.pos += int(n)
	return rest[:n]
}

// number reads a little-endian number.
func (d *decoder) number(size uint64) (n uint64) {
	for i, b := range d.take(size) {
		n |= uint64(b) << (8 * i)
	}
	return n
}

func (d *decoder) str(b []byte) {
	if !utf8.Valid(b) {
		d.fail("the str %.60q is not UTF-8", b)
	}
	v, ok := d.known[text(b)]
	if !ok {
		v = text(b)
		if len(d.known) < maxKnown {
			d.known[text(b)] = v
		}
	}
	d.push(v)
}

// line reads one of the two names of a GLOBAL.
func (d *decoder) line() text {
	// No line that is longer names anything known.
	rest := d.data[d.pos:min(len(d.data), d.pos+256)]
	end := bytes.IndexByte(rest, '\n')
	if end < 0 {
		d.fail("a name of more than 255 bytes, or cut off")
		return ""
	}
	d.pos += end + 1
	return text(rest[:end])
}

func (d *decoder) global(mod, name text) {
	g, ok := globals[[2]text{mod, name}]
	if !ok || d.proto >= 4 && (g == funcSet || g == funcEncode) {
		d.fail("it wants %.60q of module %.60q, which no rendezvous state has", name, mod)
	}
	d.push(g)
}

func (d *decoder) push(v any) {
	if len(d.stack) >= maxStack {
		d.fail("more than %d values on the stack", maxStack)
	}
	d.stack = append(d.stack, v)
}

// floor is the height of the stack at the last mark.
func (d *decoder) floor() int {
	if len(d.marks) == 0 {
		return 0
	}
	return d.marks[len(d.marks)-1]
}

// pop takes n values off, which stay valid until the next push. None of them may
// be below the last mark.
func (d *decoder) pop(n int) []any {
	height := len(d.stack) - n
	if height < d.floor() {
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
	top := d.pop(len(d.stack) - d.floor())
	d.marks = d.marks[:len(d.marks)-1]
	return top
}

// peek returns the value on top.
func (d *decoder) peek() any {
	if len(d.stack) <= d.floor() {
		d.fail("too few values on the stack")
		return nil
	}
	return d.stack[len(d.stack)-1]
}

// spend accounts for work that the size of the input alone does not bound, such
// as reading one dict many times.
func (d *decoder) spend(n int) {
	if d.work += n; d.work > maxWork {
		d.fail("it takes more work than a rendezvous state can need")
	}
}

// count bounds how many objects of a kind there are.
func (d *decoder) count(n *int) {
	if *n++; *n > maxEach {
		d.fail("more than %d objects of one kind", maxEach)
	}
}

func (d *decoder) newTuple(items []any) {
	d.count(&d.tuples)
	d.push(&tuple{slices.Clone(items), !slices.ContainsFunc(items, func(v any) bool { return !hashable(v) })})
}

// hashable says whether Python could put v into a set at this moment.
func hashable(v any) bool {
	switch v := v.(type) {
	case *bag:
		return false
	case *tuple:
		return v.hashable
	case *member:
		return v.complete
	}
	return true
}

func (d *decoder) newBag(k kind) {
	d.count(&d.bags)
	d.push(&bag{kind: k})
}

// add adds items to the bag on top of the stack.
func (d *decoder) add(into kind, items []any) {
	top := d.peek()
	b, ok := top.(*bag)
	if !ok || b.kind != into {
		d.fail("items for %s, not %s", describe(top), into)
		return
	}
	step := 1
	if into == dict {
		step = 2
	}
	if len(items)%step != 0 {
		d.fail("a key without a value")
	}
	for i := 0; i < len(items) && into != list; i += step {
		if !hashable(items[i]) {
			d.fail("%s as a key or member, which is mutable or has no attributes yet", describe(items[i]))
		}
	}
	d.spend(len(items))
	if d.err == nil {
		b.items = append(b.items, items...)
	}
}

// put stores the value on top in the memo.
func (d *decoder) put(at uint64) {
	v := d.peek()
	// Picklers count from 0, so that an index is smaller than the input.
	if at >= uint64(min(len(d.data), maxMemo)) {
		d.fail("memo index %d in a pickle of %d bytes", at, len(d.data))
	}
	if d.err != nil {
		return
	}
	if at >= uint64(len(d.memo)) {
		d.memo = append(make([]any, 0, max(int(at)+1, 2*len(d.memo))), d.memo...)
		d.memo = d.memo[:cap(d.memo)]
	}
	if d.memo[at] == nil {
		d.inUse++
	}
	d.memo[at] = v
}

func (d *decoder) get(at uint64) {
	if at >= uint64(len(d.memo)) || d.memo[at] == nil {
		d.fail("nothing was stored at memo index %d", at)
		return
	}
	d.push(d.memo[at])
}

// newObject executes NEWOBJ: a class, and the arguments of its __new__.
func (d *decoder) newObject() {
	v := d.pop(2)
	if args, ok := v[1].(*tuple); !ok || len(args.items) > 0 {
		d.fail("an object made with %s as arguments, want none", describe(v[1]))
	}
	switch v[0] {
	case classState:
		if d.state != nil {
			d.fail("a second rendezvous state")
		}
		d.state = &attrs{}
		d.push(d.state)
	case classNode:
		d.count(&d.nodes)
		d.push(&member{})
	default:
		d.fail("an object of %s that no rendezvous state makes so", describe(v[0]))
	}
}

// build executes BUILD: it gives the object on the stack its attributes.
func (d *decoder) build() {
	v := d.pop(1)[0]
	obj := d.peek()
	b, ok := v.(*bag)
	if !ok || b.kind != dict {
		d.fail("attributes in %s, want a dict", describe(v))
		return
	}
	d.spend(len(b.items))
	switch obj := obj.(type) {
	case *member:
		if obj.complete {
			d.fail("a node that gets attributes twice")
		}
		d.buildNode(obj, d.named(b.items, "addr", "fqdn", "pid", "local_id"))
	case *attrs:
		if obj.complete {
			d.fail("a state that gets attributes twice")
		}
		obj.complete = true
		obj.fields = d.named(b.items, "round", "complete", "deadline", "closed", "participants", "wait_list", "redundancy_list", "last_heartbeats")
	default:
		d.fail("attributes for %s", describe(obj))
	}
}

// named returns the attributes of those names. Others are ignored.
func (d *decoder) named(items []any, names ...text) map[text]any {
	fields := make(map[text]any, len(names))
	for i := 0; i < len(items) && d.err == nil; i += 2 {
		name, ok := items[i].(text)
		switch {
		case !ok:
			d.fail("%s as the name of an attribute", describe(items[i]))
		case slices.Contains(names, name):
			fields[name] = items[i+1]
		}
	}
	return fields
}

func (d *decoder) buildNode(n *member, fields map[text]any) {
	addr := fields["addr"]
	if addr == nil && fields["fqdn"] != nil {
		addr, n.fqdn = fields["fqdn"], true
	}
	name := want[text](d, "a node's addr", addr, "a str")
	n.PID = want[int](d, "a node's pid", fields["pid"], "an int")
	n.LocalID = want[int](d, "a node's local_id", fields["local_id"], "an int")
	if len(name) > MaxAddr {
		d.fail("a node's addr of %d bytes, more than %d", len(name), MaxAddr)
	}
	d.spend(len(name) / 8)
	n.Addr, n.complete = string(name), true
}

// want refuses a value that is missing or of another type.
func want[T any](d *decoder, what string, v any, wanted string) (t T) {
	t, ok := v.(T)
	switch {
	case ok:
	case v == nil:
		d.fail("%s is missing", what)
	default:
		d.fail("%s is %s, want %s", what, describe(v), wanted)
	}
	return t
}

// reduce executes REDUCE, a call with a tuple of arguments, where it makes a
// time, a set or bytes.
func (d *decoder) reduce() {
	v := d.pop(2)
	class, ok := v[0].(global)
	args, ok2 := v[1].(*tuple)
	if !ok || !ok2 {
		d.fail("a call of %s with %s", describe(v[0]), describe(v[1]))
		return
	}
	switch class {
	case classTimedelta:
		if !slices.Equal(args.items, []any{0, 0, 0}) {
			d.fail("a timedelta that is not (0, 0, 0): times have to be in UTC")
		}
		d.push(delta{})
	case classTimezone:
		if len(args.items) != 1 || args.items[0] != (delta{}) {
			d.fail("a timezone that is not UTC")
		}
		d.push(utc{})
	case classDatetime:
		d.newTime(args.items)
	case funcSet:
		d.newSet(args.items)
	case funcEncode:
		d.encode(args.items)
	default:
		d.fail("a call of a class that no rendezvous state makes")
	}
}

func (d *decoder) newTime(args []any) {
	aware := len(args) == 2 && args[1] == utc{}
	if !aware && len(args) != 1 {
		d.fail("a datetime with other arguments than bytes and UTC")
		return
	}
	b, ok := args[0].(octets)
	if !ok {
		d.fail("a datetime made from %s, want bytes", describe(args[0]))
		return
	}
	at, ok := datetime(b)
	if !ok {
		d.fail("a datetime of the %d bytes %.32x: there is no such time", len(b), string(b))
	}
	d.count(&d.times)
	d.push(instant{at, !aware})
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

// newSet makes a set of a list, as protocols 2 and 3 do.
func (d *decoder) newSet(args []any) {
	if len(args) == 1 {
		if from, ok := args[0].(*bag); ok && from.kind == list {
			d.newBag(set)
			d.add(set, from.items)
			return
		}
	}
	d.fail("a set made from something else than a list")
}

// encode makes bytes of a str, as protocol 2 does.
func (d *decoder) encode(args []any) {
	if len(args) != 2 || args[1] != text("latin1") {
		args = []any{nil}
	}
	s, ok := args[0].(text)
	if !ok {
		d.fail("encode of other arguments than a str and 'latin1'")
		return
	}
	d.spend(len(s) / 8)
	b := make([]byte, 0, len(s))
	for _, r := range string(s) {
		if r > 0xff {
			d.fail("%q in bytes", r)
		}
		b = append(b, byte(r))
	}
	d.push(octets(b))
}
