package pickle

import (
	"fmt"
)

// The opcodes that a state may consist of. Source: pickletools.py.
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
	opShortBinBytes   = 'C'
	opProto           = 0x80
	opNewObj          = 0x81
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a // written only: an int that needs more than 32 bits
	opShortBinUnicode = 0x8c
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
)

// opName returns Python's name of an opcode, also of those that are refused.
// Source: pickletools.py.
func opName(op byte) string {
	if name := opNames[op]; name != "" {
		return name
	}
	return fmt.Sprintf("opcode 0x%02x", op)
}

var opNames = [256]string{
	opMark: "MARK", opStop: "STOP", opNone: "NONE", opReduce: "REDUCE", opBinInt: "BININT",
	opBinInt1: "BININT1", opBinInt2: "BININT2", opBinUnicode: "BINUNICODE", opAppend: "APPEND",
	opBuild: "BUILD", opGlobal: "GLOBAL", opEmptyDict: "EMPTY_DICT", opAppends: "APPENDS",
	opBinGet: "BINGET", opLongBinGet: "LONG_BINGET", opEmptyList: "EMPTY_LIST", opBinPut: "BINPUT",
	opLongBinPut: "LONG_BINPUT", opSetItem: "SETITEM", opSetItems: "SETITEMS",
	opEmptyTuple: "EMPTY_TUPLE", opShortBinBytes: "SHORT_BINBYTES", opProto: "PROTO",
	opNewObj: "NEWOBJ", opTuple1: "TUPLE1", opTuple2: "TUPLE2", opTuple3: "TUPLE3",
	opNewTrue: "NEWTRUE", opNewFalse: "NEWFALSE", opShortBinUnicode: "SHORT_BINUNICODE",
	opEmptySet: "EMPTY_SET", opAddItems: "ADDITEMS", opStackGlobal: "STACK_GLOBAL",
	opMemoize: "MEMOIZE", opFrame: "FRAME",

	opLong1: "LONG1", 0x8b: "LONG4", 'I': "INT", 'L': "LONG", 'F': "FLOAT", 'G': "BINFLOAT",
	'S': "STRING", 'T': "BINSTRING", 'U': "SHORT_BINSTRING", 'V': "UNICODE", 'B': "BINBYTES",
	0x8d: "BINUNICODE8", 0x8e: "BINBYTES8", 0x96: "BYTEARRAY8", 0x91: "FROZENSET",
	'd': "DICT", 'l': "LIST", 't': "TUPLE", 'g': "GET", 'p': "PUT", '0': "POP", '1': "POP_MARK",
	'2': "DUP", 'P': "PERSID", 'Q': "BINPERSID", 'i': "INST", 'o': "OBJ", 0x92: "NEWOBJ_EX",
	0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}
