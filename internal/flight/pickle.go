package flight

import (
	"encoding/binary"
	"fmt"
)

// Opcodes that make data. Source: pickletools.py.
const (
	opMark            = '('
	opStop            = '.'
	opNone            = 'N'
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opLong1           = 0x8a
	opBinFloat        = 'G'
	opBinUnicode      = 'X'
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opEmptyList       = ']'
	opAppend          = 'a'
	opAppends         = 'e'
	opEmptyDict       = '}'
	opSetItem         = 's'
	opSetItems        = 'u'
	opEmptyTuple      = ')'
	opTuple           = 't'
	opTuple1          = 0x85
	opTuple3          = 0x87
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opMemoize         = 0x94
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opProto           = 0x80
	opFrame           = 0x95
)

// argument is how many bytes follow an opcode, or the length of what follows.
var argument = [256]uint8{opBinInt: 4, opBinInt1: 1, opBinInt2: 2, opLong1: 1, opBinFloat: 8, opBinUnicode: 4,
	opShortBinUnicode: 1, opBinUnicode8: 8, opBinPut: 1, opLongBinPut: 4, opBinGet: 1, opLongBinGet: 4, opProto: 1, opFrame: 8}

// active names the opcodes that import, call or fetch.
var active = map[byte]string{'c': "GLOBAL", 'i': "INST", 'o': "OBJ", 'R': "REDUCE", 'b': "BUILD", 'P': "PERSID",
	'Q': "BINPERSID", 0x81: "NEWOBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL",
	0x97: "NEXT_BUFFER"}

// pickle reads a document of protocol 2 to 5. It makes numbers, texts, lists and dicts, and refuses
// a pickle that has other opcodes.
func (d *document) pickle() error {
	for d.made <= maxValues {
		if d.pos >= len(d.data) {
			return d.errorf("%w", errCut)
		}
		op := d.data[d.pos]
		size := int(argument[op])
		if size >= len(d.data)-d.pos {
			return d.errorf("%w", errCut)
		}
		var arg uint64
		switch after := d.data[d.pos+1:]; size {
		case 1:
			arg = uint64(after[0])
		case 2:
			arg = uint64(binary.LittleEndian.Uint16(after))
		case 4:
			arg = uint64(binary.LittleEndian.Uint32(after))
		case 8:
			arg = binary.LittleEndian.Uint64(after)
		}
		if op == opStop {
			if len(d.stack) == 0 {
				return d.errorf("nothing on the stack at the end")
			}
			return nil
		}
		start := d.pos
		d.pos += 1 + size
		if err := d.do(op, arg); err != nil {
			d.pos = start
			return d.errorf("%w", err)
		}
	}
	return d.errorf("more than %d values", maxValues)
}

// do executes one opcode.
func (d *document) do(op byte, arg uint64) error {
	switch op {
	case opBinUnicode, opShortBinUnicode, opBinUnicode8:
		if arg > uint64(len(d.data)-d.pos) {
			return errCut
		}
		d.push(value{kind: kindText, a: int32(d.pos), b: int32(d.pos + int(arg))})
		d.pos += int(arg)
	case opBinGet, opLongBinGet:
		if arg >= uint64(len(d.memo)) {
			return fmt.Errorf("index %d of the memo, which has %d", arg, len(d.memo))
		}
		d.push(d.memo[arg])
	case opBinPut, opLongBinPut:
		return d.put(arg)
	case opMemoize:
		return d.put(uint64(len(d.memo)))
	case opBinInt:
		d.push(value{kind: kindNumber, n: int64(int32(arg))})
	case opBinInt1, opBinInt2:
		d.push(value{kind: kindNumber, n: int64(arg)})
	case opLong1:
		return d.long(int(arg))
	case opNone, opNewFalse, opNewTrue, opBinFloat: // a float, a duration, is not asked for
		v := value{kind: kindNumber}
		switch op {
		case opNone:
			v.kind = kindNone
		case opNewTrue:
			v.n = 1
		}
		d.push(v)
	case opProto, opFrame:
		if op == opProto && (arg < 2 || arg > 5) {
			return fmt.Errorf("protocol %d, which is not 2 to 5", arg)
		}
	default:
		return d.gather(op)
	}
	return nil
}

func (d *document) put(index uint64) error {
	switch {
	case len(d.stack) == 0 || index > uint64(len(d.memo)):
		return fmt.Errorf("index %d for a memo of %d, or nothing to keep", index, len(d.memo))
	case index == uint64(len(d.memo)):
		d.memo = append(d.memo, value{})
	}
	d.memo[index] = d.stack[len(d.stack)-1]
	return nil
}

// long reads a little-endian integer in two's complement.
func (d *document) long(size int) error {
	switch {
	case size > 8:
		return fmt.Errorf("an integer of %d bytes", size)
	case size > len(d.data)-d.pos:
		return errCut
	}
	var b [8]byte
	if copy(b[:], d.data[d.pos:d.pos+size]); size > 0 && b[size-1]&0x80 != 0 {
		for i := size; i < 8; i++ {
			b[i] = 0xff
		}
	}
	d.pos += size
	d.push(value{kind: kindNumber, n: int64(binary.LittleEndian.Uint64(b[:]))})
	return nil
}

// gather executes the opcodes that make lists, tuples and dicts, and what they are made of.
func (d *document) gather(op byte) error {
	floor := 0
	if n := len(d.marks); n > 0 {
		floor = d.marks[n-1]
	}
	start := floor // of what is gathered
	switch op {
	case opMark:
		d.marks, d.made = append(d.marks, len(d.stack)), d.made+1
		return nil
	case opEmptyList, opEmptyDict, opEmptyTuple:
		start = len(d.stack)
	case opTuple1, opTuple1 + 1, opTuple3:
		start = len(d.stack) - int(op-opTuple1) - 1
	case opAppend:
		start = len(d.stack) - 1
	case opSetItem:
		start = len(d.stack) - 2
	case opTuple, opAppends, opSetItems:
		if len(d.marks) == 0 {
			return fmt.Errorf("no mark on the stack")
		}
		d.marks = d.marks[:len(d.marks)-1]
	default:
		if name, ok := active[op]; ok {
			return fmt.Errorf("opcode %s does more than make data; the pickle is refused", name)
		}
		return fmt.Errorf("opcode 0x%02x is not one of PyTorch's dumps", op)
	}
	if start < floor {
		return fmt.Errorf("too little on the stack")
	}
	return d.combine(op, start)
}

// combine makes or extends a list or dict with the values from start on the stack.
func (d *document) combine(op byte, start int) error {
	k := kindList
	switch op {
	case opEmptyDict, opSetItem, opSetItems:
		k = kindDict
	}
	switch op {
	case opAppend, opAppends, opSetItem, opSetItems:
		if start == 0 || d.stack[start-1].kind != k || k == kindDict && (len(d.stack)-start)%2 != 0 {
			return fmt.Errorf("nothing that could be added to")
		}
		d.extend(d.stack[start-1], start)
	default:
		d.list(k, start)
	}
	return nil
}
