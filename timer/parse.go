package timer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"syscall"
	"unicode/utf8"
	"unsafe"

	"github.com/muster-run/muster/internal/pyjson"
)

// ParseRequest reads one line of a FIFO, without its newline. It takes what Python's
// json.loads takes: keys in any order, the last of equal ones, unknown ones ignored;
// NaN and Infinity; lone surrogates (as their three-byte generalized UTF-8). A scope
// that is a number, true, false or null names the timer by its text.
// Source: _get_requests in file_based_local_timer.py.
func ParseRequest(line []byte) (Request, error) {
	r, ok := parseFast(line)
	if ok {
		r.ScopeID = string([]byte(r.ScopeID)) // it was a part of line
		return r, nil
	}
	return parseSlow(line)
}

// The fields that a line must have, as bits.
const (
	hasPID = 1 << iota
	hasScope
	hasTime
	hasSignal
	hasAll = hasPID | hasScope | hasTime | hasSignal
)

// parseFast reads the lines that clients write: an object of plain strings and
// numbers. What it does not know it leaves to parseSlow, also every error. The
// scope is a part of line and changes with it.
func parseFast(line []byte) (r Request, ok bool) {
	c := scanner{text: line}
	if !c.take('{') {
		return r, false
	}
	has := 0
	for {
		key, ok := c.plain()
		if !ok || !c.take(':') {
			return r, false
		}
		switch string(key) {
		case "version":
			_, _, ok = c.number()
		case "pid":
			r.PID, ok = c.integer()
			if r.PID < 1 || r.PID > math.MaxInt32 {
				return r, false
			}
			has |= hasPID
		case "scope_id":
			var scope []byte
			scope, ok = c.plain()
			r.ScopeID = unsafe.String(unsafe.SliceData(scope), len(scope))
			has |= hasScope
		case "expiration_time":
			r.ExpirationTime, ok = c.float()
			has |= hasTime
		case "signal":
			var n int
			n, ok = c.integer()
			if n > math.MaxInt32 || n < math.MinInt32 {
				return r, false
			}
			r.Signal = syscall.Signal(n)
			has |= hasSignal
		default:
			return r, false
		}
		if !ok {
			return r, false
		}
		if c.take(',') {
			continue
		}
		return r, c.take('}') && c.end() && has == hasAll
	}
}

// A scanner walks over a line.
type scanner struct {
	text []byte
	pos  int
}

func (c *scanner) space() {
	for c.pos < len(c.text) && (c.text[c.pos] == ' ' || c.text[c.pos] == '\t' || c.text[c.pos] == '\r') {
		c.pos++
	}
}

func (c *scanner) end() bool {
	c.space()
	return c.pos == len(c.text)
}

// take takes b, with blanks before it, if that is next.
func (c *scanner) take(b byte) bool {
	c.space()
	if c.pos < len(c.text) && c.text[c.pos] == b {
		c.pos++
		return true
	}
	return false
}

// plain takes a string of printable ASCII without escapes.
func (c *scanner) plain() ([]byte, bool) {
	if !c.take('"') {
		return nil, false
	}
	for i, b := range c.text[c.pos:] {
		if b == '"' {
			text := c.text[c.pos : c.pos+i]
			c.pos += i + 1
			return text, true
		}
		if b < ' ' || b > '~' || b == '\\' {
			break
		}
	}
	return nil, false
}

// number takes a number as JSON spells it.
func (c *scanner) number() (text []byte, whole, ok bool) {
	c.space()
	t, i := c.text, c.pos
	if i < len(t) && t[i] == '-' {
		i++
	}
	digits := func() bool {
		from := i
		for i < len(t) && t[i]-'0' < 10 {
			i++
		}
		return i > from
	}
	first := i
	if !digits() || t[first] == '0' && i > first+1 {
		return nil, false, false
	}
	whole = true
	if i < len(t) && t[i] == '.' {
		i++
		if whole = false; !digits() {
			return nil, false, false
		}
	}
	if i < len(t) && t[i]|0x20 == 'e' {
		if i++; i < len(t) && (t[i] == '+' || t[i] == '-') {
			i++
		}
		if whole = false; !digits() {
			return nil, false, false
		}
	}
	text = t[c.pos:i]
	c.pos = i
	return text, whole, true
}

// integer takes an integer of at most 18 digits.
func (c *scanner) integer() (int, bool) {
	text, whole, ok := c.number()
	if !ok || !whole || len(text) > 18 {
		return 0, false
	}
	n, negative := int64(0), false
	for _, b := range text {
		if b == '-' {
			negative = true
			continue
		}
		n = 10*n + int64(b-'0')
	}
	if negative {
		n = -n
	}
	return int(n), int64(int(n)) == n
}

func (c *scanner) float() (float64, bool) {
	text, whole, ok := c.number()
	if !ok {
		return 0, false
	}
	if whole && len(text) <= 15 && text[0] != '-' {
		n := int64(0)
		for _, b := range text {
			n = 10*n + int64(b-'0')
		}
		return float64(n), true
	}
	// ParseFloat does not keep the text.
	f, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(text), len(text)), 64)
	return f, err == nil
}

// parseSlow reads any line, and says what is wrong with it.
func parseSlow(line []byte) (r Request, err error) {
	if !utf8.Valid(line) {
		return r, errors.New("not UTF-8")
	}
	v, err := pyjson.Parse(line)
	if err != nil {
		return r, err
	}
	if v.Kind != pyjson.Object {
		return r, fmt.Errorf("want an object, not a %v", v.Kind)
	}
	get := func(key string) pyjson.Value {
		field, ok := v.Get(key)
		if !ok {
			err = errors.Join(err, fmt.Errorf("no %q", key))
			return pyjson.Value{}
		}
		return *field
	}
	pid, scope, at, signal := get("pid"), get("scope_id"), get("expiration_time"), get("signal")
	if err != nil {
		return r, err
	}
	errs := []error{nil, nil, nil, nil}
	r.PID, errs[0] = integer("pid", pid, 1, math.MaxInt32)
	r.ScopeID, errs[1] = scopeText(scope)
	r.ExpirationTime, errs[2] = number("expiration_time", at)
	n, err := integer("signal", signal, math.MinInt, math.MaxInt32)
	r.Signal, errs[3] = syscall.Signal(max(n, math.MinInt32)), err
	return r, errors.Join(errs...)
}

func integer(key string, v pyjson.Value, least, most int) (int, error) {
	if v.Kind != pyjson.Number {
		return 0, fmt.Errorf("%q is a %v: want an integer", key, v.Kind)
	}
	n, err := strconv.Atoi(v.Text)
	if errors.Is(err, strconv.ErrRange) && v.Text[0] == '-' && least == math.MinInt {
		return math.MinInt, nil
	}
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is %.32s: want an integer from %d to %d", key, v.Text, least, most)
	}
	return n, nil
}

func number(key string, v pyjson.Value) (float64, error) {
	if v.Kind != pyjson.Number {
		return 0, fmt.Errorf("%q is a %v: want a number", key, v.Kind)
	}
	f, err := strconv.ParseFloat(v.Text, 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil // an infinity, as in Python
	}
	return f, err
}

func scopeText(v pyjson.Value) (string, error) {
	switch v.Kind {
	case pyjson.String:
		return v.Text, nil
	case pyjson.Array, pyjson.Object:
		return "", fmt.Errorf("\"scope_id\" is a %v: want text", v.Kind)
	}
	return v.String(), nil
}

// salvage finds the requests in a line that is none: a writer that died within its
// line leaves a beginning, to which the next writer's line is joined. No string can
// hold `{"`, because its quote is escaped, so that is where an object begins.
func salvage(line []byte, found func(Request)) {
	for tries := 0; tries < 64; tries++ {
		begin := bytes.Index(line, []byte(`{"`))
		if begin < 0 {
			return
		}
		line = line[begin:]
		piece := line
		if next := bytes.Index(line[1:], []byte(`{"`)); next >= 0 {
			piece = line[:1+next]
		}
		if r, err := ParseRequest(piece); err == nil {
			found(r)
		}
		line = line[len(piece):]
	}
}
