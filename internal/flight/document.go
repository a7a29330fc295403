package flight

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
)

// Bounds of what is read. An entry with its stack needs about 60 values.
const (
	MaxSize   = 64 << 20 // bytes of a dump
	maxValues = 4 << 20
	maxWork   = 4 * maxValues // values looked at, some of them more than once
	maxDepth  = 16
)

type kind uint8

const (
	kindNone kind = iota
	kindNumber
	kindText
	kindList
	kindDict
)

// A value is one value of a document: a number or truth is n, a text data[a:b], and a is the index of
// a list or dict.
type value struct {
	kind kind
	a, b int32
	n    int64
}

// A document is a tree of values. Its memory serves the next one, too.
type document struct {
	data   []byte
	isJSON bool
	pos    int
	stack  []value
	memo   []value
	marks  []int
	lists  [][]value // of a dict, keys and values in turn
	arena  []value   // what lists are cut from
	made   int
	work   int
}

func (d *document) reset(data []byte) {
	*d = document{data: data, isJSON: len(data) > 0 && data[0] != opProto, stack: d.stack[:0], memo: d.memo[:0],
		marks: d.marks[:0], lists: d.lists[:0], arena: d.arena[:0]}
}

// parse returns the document's root.
func (d *document) parse() (value, error) {
	if len(d.data) > MaxSize {
		return value{}, fmt.Errorf("%d bytes, more than %d", len(d.data), MaxSize)
	}
	parse := d.pickle
	if d.isJSON {
		parse = d.json
	}
	if err := parse(); err != nil {
		return value{}, err
	}
	return d.stack[len(d.stack)-1], nil
}

func (d *document) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", d.pos, fmt.Errorf(format, args...))
}

var errCut = errors.New("the dump is cut off")

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
	more := d.stack[start:]
	if old := d.lists[v.a]; len(old) > 0 {
		d.lists[v.a] = append(old, more...)
	} else {
		from := len(d.arena)
		d.arena = append(d.arena, more...)
		d.lists[v.a] = d.arena[from:len(d.arena):len(d.arena)]
	}
	d.stack = d.stack[:start]
}

// items returns a list's values, or a dict's keys and values in turn; nothing for other values. Pickles
// name a list again and again, so that work is counted.
func (d *document) items(v value, k kind) []value {
	if v.kind != k {
		return nil
	}
	items := d.lists[v.a]
	if d.work += 1 + len(items); d.work > maxWork {
		return nil
	}
	return items
}

// fields returns the keys and values of a dict.
func (d *document) fields(v value) iter.Seq2[value, value] {
	return func(yield func(key, v value) bool) {
		for items := d.items(v, kindDict); len(items) > 1 && yield(items[0], items[1]); items = items[2:] {
		}
	}
}

// bytes returns a text as it is written.
func (d *document) bytes(v value) []byte {
	if v.kind != kindText {
		return nil
	}
	return d.data[v.a:v.b]
}

// text returns a copy of a text.
func (d *document) text(v value) string {
	raw := d.bytes(v)
	if d.isJSON && len(raw) > 0 {
		var s string
		if json.Unmarshal(d.data[v.a-1:v.b+1], &s) == nil {
			return s
		}
	}
	return string(raw)
}
