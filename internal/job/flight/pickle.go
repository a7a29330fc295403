package flight

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
)

// arguments has how many bytes follow an opcode. Source: pickletools.py.
var arguments = [256]uint8{'J': 4, 'K': 1, 'M': 2, 0x8a: 1, 'G': 8, 'X': 4, 0x8c: 1, 0x8d: 8, 'q': 1, 'r': 4, 'h': 1,
	'j': 4, 0x80: 1, 0x95: 8}

// active names the opcodes that import, call or fetch.
var active = map[byte]string{'c': "GLOBAL", 'i': "INST", 'o': "OBJ", 'R': "REDUCE", 'b': "BUILD", 'P': "PERSID",
	'Q': "BINPERSID", 0x81: "NEWOBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL"}

// pickle reads a pickle of protocol 2 to 5 that makes numbers, texts, lists and dicts, and refuses others.
func (d *document) pickle() error {
	for d.made <= maxValues {
		if d.pos >= len(d.data) {
			return errCut
		}
		op := d.data[d.pos]
		if op == '.' && len(d.stack) > 0 {
			return nil
		}
		start, rest := d.pos, d.data[d.pos+1:]
		size := int(arguments[op])
		if size > len(rest) {
			return errCut
		}
		var arg [8]byte
		copy(arg[:], rest[:size])
		d.pos += 1 + size
		if err := d.do(op, binary.LittleEndian.Uint64(arg[:])); err != nil {
			d.pos = start
			return err
		}
	}
	return errMany
}

// do executes one opcode.
func (d *document) do(op byte, arg uint64) error {
	switch op {
	case 'X', 0x8c, 0x8d: // BINUNICODE and its short and long forms
		if arg > uint64(len(d.data)-d.pos) {
			return errCut
		}
		d.push(value{kind: kindText, a: int32(d.pos), b: int32(d.pos + int(arg))})
		d.pos += int(arg)
	case 'h', 'j': // BINGET
		if arg >= uint64(len(d.memo)) {
			return fmt.Errorf("index %d of the memo, which has %d", arg, len(d.memo))
		}
		d.push(d.memo[arg])
	case 'q', 'r', 0x94: // BINPUT, MEMOIZE
		if op == 0x94 {
			arg = uint64(len(d.memo))
		}
		if len(d.stack) == 0 || arg > uint64(len(d.memo)) {
			return fmt.Errorf("index %d for a memo of %d, or nothing to keep", arg, len(d.memo))
		}
		if arg == uint64(len(d.memo)) {
			d.memo = append(d.memo, value{})
		}
		d.memo[arg] = d.stack[len(d.stack)-1]
	case 'J': // BININT
		d.push(value{n: int64(int32(arg))})
	case 'K', 'M': // BININT1, BININT2
		d.push(value{n: int64(arg)})
	case 0x8a: // LONG1, of so many bytes in two's complement
		if arg > 8 || arg > uint64(len(d.data)-d.pos) {
			return fmt.Errorf("an integer of %d bytes: %w", arg, errCut)
		}
		n, unused := int64(0), 64-8*arg
		for i := range arg {
			n |= int64(d.data[d.pos+int(i)]) << (8 * i)
		}
		d.pos += int(arg)
		d.push(value{n: n << unused >> unused})
	case 'N', 0x89, 'G': // NONE, NEWFALSE; BINFLOAT, a duration that nobody asks for
		d.push(value{})
	case 0x88: // NEWTRUE
		d.push(value{n: 1})
	case '(': // MARK
		d.marks, d.made = append(d.marks, len(d.stack)), d.made+1
	case 0x80: // PROTO
		if arg < 2 || arg > 5 {
			return fmt.Errorf("protocol %d, which is not 2 to 5", arg)
		}
	case 0x95: // FRAME
	default:
		return d.gather(op)
	}
	return nil
}

// gather executes the opcodes that make or extend a list, tuple or dict.
func (d *document) gather(op byte) error {
	k, start, floor := kindList, len(d.stack), 0
	if n := len(d.marks); n > 0 {
		floor = d.marks[n-1]
	}
	switch op {
	case ']', '}', ')': // EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE
	case 'a', 0x85: // APPEND, TUPLE1
		start--
	case 's', 0x86: // SETITEM, TUPLE2
		start -= 2
	case 0x87: // TUPLE3
		start -= 3
	case 'e', 'u', 't': // APPENDS, SETITEMS, TUPLE
		if len(d.marks) == 0 {
			return errors.New("no mark on the stack")
		}
		start, d.marks = floor, d.marks[:len(d.marks)-1]
	default:
		return fmt.Errorf("opcode %s (0x%02x) does more than make data: the pickle is refused", cmp.Or(active[op], "?"), op)
	}
	if op == '}' || op == 's' || op == 'u' {
		k = kindDict
	}
	extends := op == 'a' || op == 'e' || op == 's' || op == 'u'
	switch {
	case start < floor || extends && (start == 0 || d.stack[start-1].kind != k),
		k == kindDict && (len(d.stack)-start)%2 != 0:
		return errors.New("too little on the stack, or something else")
	case extends:
		d.extend(d.stack[start-1], start)
	default:
		d.list(k, start)
	}
	return nil
}
