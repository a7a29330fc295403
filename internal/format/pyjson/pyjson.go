// Package pyjson reads and writes JSON as Python's json module does: what json.load
// accepts (NaN, Infinity, lone surrogates, repeated keys), and, byte for byte, what json.dumps prints with
// its defaults (", " and ": " between things, ASCII only, keys in the order they came).
//
// It keeps what a rewrite must not lose, the order of keys and the spelling of
// numbers. Use encoding/json where Python does not read along, and to read what
// AppendStruct writes.
package pyjson

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A Kind is one of JSON's types.
type Kind uint8

// The kinds of a Value. The zero Value is null.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

func (k Kind) String() string {
	return [...]string{"null", "bool", "number", "string", "list", "object"}[k]
}

// A Value is one JSON value. Only the fields of its Kind mean something.
type Value struct {
	Kind    Kind
	Bool    bool
	Text    string   // a string's text, or a number as it was spelt
	Items   []Value  // of an array
	Members []Member // of an object; each key once, in order of first appearance
}

// A Member is one key of an object with its value.
type Member struct {
	Key   string
	Value Value
}

// Str returns a string value.
func Str(s string) Value { return Value{Kind: String, Text: s} }

// Int returns a number.
func Int(n int64) Value { return Value{Kind: Number, Text: strconv.FormatInt(n, 10)} }

// Float returns a number as Python's repr prints it.
func Float(f float64) Value { return Value{Kind: Number, Text: formatFloat(f)} }

// True returns a boolean.
func True(b bool) Value { return Value{Kind: Bool, Bool: b} }

// Dict returns an object.
func Dict(members ...Member) Value { return Value{Kind: Object, Members: members} }

// Get returns the member of an object, and the null value and false where v is
// no object or has no such member.
func (v *Value) Get(key string) (*Value, bool) {
	if v.Kind == Object {
		for i := range v.Members {
			if v.Members[i].Key == key {
				return &v.Members[i].Value, true
			}
		}
	}
	return &Value{}, false
}

// Set replaces the member of an object in its place, or adds it at the end. It
// does nothing to other kinds.
func (v *Value) Set(key string, value Value) {
	if v.Kind != Object {
		return
	}
	if m, ok := v.Get(key); ok {
		*m = value
		return
	}
	v.Members = append(v.Members, Member{key, value})
}

// String returns the value as json.dumps prints it.
func (v Value) String() string { return string(v.Append(nil)) }

// Append appends the value as json.dumps prints it.
func (v Value) Append(dst []byte) []byte {
	switch v.Kind {
	case Bool:
		return strconv.AppendBool(dst, v.Bool)
	case Number:
		return append(dst, v.Text...)
	case String:
		return AppendString(dst, v.Text)
	case Array:
		dst = append(dst, '[')
		for i, item := range v.Items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = item.Append(dst)
		}
		return append(dst, ']')
	case Object:
		dst = append(dst, '{')
		for i, m := range v.Members {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = AppendString(dst, m.Key)
			dst = append(dst, ": "...)
			dst = m.Value.Append(dst)
		}
		return append(dst, '}')
	}
	return append(dst, "null"...)
}

const hex = "0123456789abcdef"

// AppendString appends s in quotes, with everything outside printable ASCII
// escaped. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		r, n := decode(s[i:])
		i += n
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r >= ' ' && r <= '~':
			dst = append(dst, byte(r))
		case r < ' ' && short[r] != 0:
			dst = append(dst, '\\', short[r])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			dst = appendEscape(appendEscape(dst, high), low)
		default:
			dst = appendEscape(dst, r)
		}
	}
	return append(dst, '"')
}

// short are the control characters that have a letter.
var short = [' ']byte{'\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}

func appendEscape(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}

// decode is utf8.DecodeRuneInString that lets the three-byte form of a lone
// surrogate pass.
func decode(s string) (rune, int) {
	if len(s) >= 3 && s[0] == 0xed && s[1] >= 0xa0 && s[1] <= 0xbf && s[2] >= 0x80 && s[2] <= 0xbf {
		return rune(s[0]&15)<<12 | rune(s[1]&63)<<6 | rune(s[2]&63), 3
	}
	return utf8.DecodeRuneInString(s)
}

func appendSurrogate(dst []byte, r rune) []byte {
	return append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6&63), 0x80|byte(r&63))
}

// Clean returns s as valid UTF-8 for people: lone surrogates and other damage
// become U+FFFD.
func Clean(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	dst := make([]byte, 0, len(s)+8)
	for i := 0; i < len(s); {
		r, n := decode(s[i:])
		dst = utf8.AppendRune(dst, r) // which writes a surrogate as U+FFFD
		i += n
	}
	return string(dst)
}

// formatFloat prints f as Python's repr does: the shortest digits that read
// back, in positional notation from 1e-4 to below 1e16.
func formatFloat(f float64) string {
	switch abs := math.Abs(f); {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case abs != 0 && (abs < 1e-4 || abs >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if strings.Contains(s, ".") {
		return s
	}
	return s + ".0"
}
