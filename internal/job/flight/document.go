package flight

import (
	"errors"
	"fmt"
)

// Bounds of what is read. An entry with its stack has about 60 values.
const (
	MaxSize    = 64 << 20 // bytes of a dump
	maxValues  = 4 << 20
	maxEntries = 1 << 17       // a recorder keeps 2000, unless it is told otherwise
	maxWork    = 4 * maxValues // values looked at, some of them more than once
)

var (
	errCut  = errors.New("the dump is cut off")
	errMany = fmt.Errorf("more than %d values", maxValues)
)

type kind uint8

const (
	kindNumber kind = iota // also true, 1, and false and nothing, 0
	kindText
	kindList
	kindDict
)

// A value of a document: the number n, the text data[a:b], or the list or dict lists[a].
type value struct {
	kind kind
	a, b int32
	n    int64
}

// A document is a tree of values. Its memory serves the next one, too.
type document struct {
	data               []byte
	pos, made, work    int // the next byte; values so far, and how often one was looked at
	stack, memo, arena []value
	lists              [][]value // cut from arena; of a dict, keys and values in turn
	marks              []int
}

// parse returns the root of the document that data has.
func (d *document) parse(data []byte) (root value, err error) {
	*d = document{data: data, stack: d.stack[:0], memo: d.memo[:0], arena: d.arena[:0], lists: d.lists[:0],
		marks: d.marks[:0]}
	switch {
	case len(data) > MaxSize:
		return root, fmt.Errorf("%d bytes, more than %d", len(data), MaxSize)
	case len(data) > 0 && data[0] == 0x80:
		err = d.pickle()
	default:
		err = d.json()
	}
	if err != nil {
		return root, fmt.Errorf("byte %d: %w", d.pos, err)
	}
	return d.stack[len(d.stack)-1], nil
}

func (d *document) push(v value) { d.stack, d.made = append(d.stack, v), d.made+1 }

// list makes a list or dict of the values from start on the stack, and puts it in their place.
func (d *document) list(k kind, start int) {
	d.lists = append(d.lists, nil)
	v := value{kind: k, a: int32(len(d.lists) - 1)}
	d.extend(v, start)
	d.push(v)
}

// extend moves the values from start on the stack to the end of a list or dict.
func (d *document) extend(v value, start int) {
	if old := d.lists[v.a]; len(old) > 0 {
		d.lists[v.a] = append(old, d.stack[start:]...)
	} else {
		from := len(d.arena)
		d.arena = append(d.arena, d.stack[start:]...)
		d.lists[v.a] = d.arena[from:len(d.arena):len(d.arena)]
	}
	d.stack = d.stack[:start]
}

// items returns a list's values, or a dict's keys and values in turn; nothing for other values. A
// pickle can name one list again and again, so that work is counted.
func (d *document) items(v value, k kind) []value {
	if v.kind != k || d.work > maxWork {
		return nil
	}
	d.work += 1 + len(d.lists[v.a])
	return d.lists[v.a]
}

// bytes returns a text, and text a copy of it.
func (d *document) bytes(v value) []byte {
	if v.kind != kindText {
		return nil
	}
	return d.data[v.a:v.b]
}

func (d *document) text(v value) string { return string(d.bytes(v)) }

// A dict finds the values of a dict by their keys.
type dict struct {
	doc   *document
	items []value
	next  int // the last one found; keys are asked for in about the order in which they are written
}

func (d *document) dict(v value) dict { return dict{d, d.items(v, kindDict), -2} }

func (d *dict) get(key string) value {
	for range len(d.items) / 2 {
		if d.next += 2; d.next >= len(d.items) {
			d.next = 0
		}
		if d.doc.work++; string(d.doc.bytes(d.items[d.next])) == key {
			return d.items[d.next+1]
		}
	}
	return value{}
}

func (d *dict) text(key string) string { return d.doc.text(d.get(key)) }
