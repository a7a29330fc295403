package pyjson

import (
	"fmt"
	"unicode/utf8"
)

// MaxDepth is how deep lists and objects may nest; Python gives up near 1000.
const MaxDepth = 512

// A SyntaxError says where a document stops being JSON.
type SyntaxError struct {
	Offset int    // in bytes
	Why    string // what is wrong there
	Cut    bool   // the document ended too early; what there is, is sound
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.Why, e.Offset) }

// Parse reads one document. On error, always a *SyntaxError, the value is what
// came before the damage: objects and lists without the rest, a string up to
// its end. A byte order mark is skipped and bytes that are not UTF-8 are read
// as U+FFFD; Python refuses both.
func Parse(data []byte) (Value, error) {
	p := parser{data: data}
	if len(data) >= 3 && data[0] == 0xef && data[1] == 0xbb && data[2] == 0xbf {
		p.pos = 3
	}
	v := p.value(0)
	if p.err == nil {
		if p.space(); p.pos < len(data) {
			p.fail("more text after the end")
		}
	}
	if p.err != nil {
		return v, p.err
	}
	return v, nil
}

type parser struct {
	data []byte
	pos  int
	err  *SyntaxError // the first one; everything stops there
}

func (p *parser) fail(why string) {
	if p.err == nil {
		p.err = &SyntaxError{Offset: p.pos, Why: why}
	}
}

func (p *parser) cut() {
	if p.err == nil {
		p.err = &SyntaxError{Offset: len(p.data), Why: "unexpected end", Cut: true}
	}
}

func (p *parser) space() {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// next skips blanks and returns the byte there without taking it.
func (p *parser) next() (byte, bool) {
	if p.space(); p.pos < len(p.data) {
		return p.data[p.pos], true
	}
	p.cut()
	return 0, false
}

func (p *parser) value(depth int) Value {
	c, ok := p.next()
	if !ok {
		return Value{}
	}
	switch {
	case depth > MaxDepth:
		p.fail(fmt.Sprintf("nested deeper than %d", MaxDepth))
	case c == '{':
		p.pos++
		return p.object(depth)
	case c == '[':
		p.pos++
		return p.array(depth)
	case c == '"':
		p.pos++
		return Str(p.text())
	case c == '-' && p.word("-Infinity"):
		return Value{Kind: Number, Text: "-Infinity"}
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	case p.word("true"):
		return True(true)
	case p.word("false"):
		return True(false)
	case p.word("null"):
	case p.word("NaN"):
		return Value{Kind: Number, Text: "NaN"}
	case p.word("Infinity"):
		return Value{Kind: Number, Text: "Infinity"}
	default:
		p.fail(fmt.Sprintf("unexpected %q", c))
	}
	return Value{}
}

// word takes w if it is next. The beginning of w at the document's end counts
// as cut off.
func (p *parser) word(w string) bool {
	rest := p.data[p.pos:]
	if len(rest) >= len(w) && string(rest[:len(w)]) == w {
		p.pos += len(w)
		return true
	}
	if len(rest) > 1 && len(rest) < len(w) && w[:len(rest)] == string(rest) {
		p.cut()
	}
	return false
}

func (p *parser) object(depth int) Value {
	v := Value{Kind: Object}
	var index map[string]int // where each key is, once there are many
	for first := true; ; first = false {
		c, ok := p.next()
		switch {
		case !ok:
			return v
		case c == '}' && first:
			p.pos++
			return v
		case c != '"':
			p.fail(fmt.Sprintf("a key must be a string, not %q", c))
			return v
		}
		p.pos++
		key := p.text()
		if p.err != nil {
			return v
		}
		if c, ok = p.next(); !ok {
			return v
		}
		if c != ':' {
			p.fail(fmt.Sprintf("a key needs ':', not %q", c))
			return v
		}
		p.pos++
		member := p.value(depth + 1)
		if p.err == nil || member.Kind != Null {
			index = v.put(key, member, index)
		}
		if p.err != nil || !p.more('}') {
			return v
		}
	}
}

// put is Set for objects of any size: no scan over all keys for each key.
func (v *Value) put(key string, member Value, index map[string]int) map[string]int {
	const many = 16
	if len(v.Members) < many {
		v.Set(key, member)
		return nil
	}
	if index == nil {
		index = make(map[string]int, 2*many)
		for i, m := range v.Members {
			index[m.Key] = i
		}
	}
	if i, ok := index[key]; ok {
		v.Members[i].Value = member
		return index
	}
	index[key] = len(v.Members)
	v.Members = append(v.Members, Member{key, member})
	return index
}

func (p *parser) array(depth int) Value {
	v := Value{Kind: Array}
	if c, ok := p.next(); !ok {
		return v
	} else if c == ']' {
		p.pos++
		return v
	}
	for {
		item := p.value(depth + 1)
		if p.err == nil || item.Kind != Null {
			v.Items = append(v.Items, item)
		}
		if p.err != nil || !p.more(']') {
			return v
		}
	}
}

// more takes a comma and says true, or takes end and says false.
func (p *parser) more(end byte) bool {
	c, ok := p.next()
	switch {
	case !ok:
		return false
	case c == ',':
		p.pos++
		return true
	case c == end:
		p.pos++
		return false
	}
	p.fail(fmt.Sprintf("expected ',' or %q, not %q", end, c))
	return false
}

func (p *parser) number() Value {
	start := p.pos
	digits := func() bool {
		from := p.pos
		for p.pos < len(p.data) && '0' <= p.data[p.pos] && p.data[p.pos] <= '9' {
			p.pos++
		}
		return p.pos > from
	}
	peek := func() byte {
		if p.pos < len(p.data) {
			return p.data[p.pos]
		}
		return 0
	}
	bad := func() Value {
		if p.pos == len(p.data) {
			p.cut()
		} else {
			p.fail("not a number")
		}
		return Value{}
	}
	if peek() == '-' {
		p.pos++
	}
	if peek() == '0' {
		p.pos++
	} else if !digits() {
		return bad()
	}
	if peek() == '.' {
		p.pos++
		if !digits() {
			return bad()
		}
	}
	if c := peek(); c == 'e' || c == 'E' {
		p.pos++
		if c := peek(); c == '+' || c == '-' {
			p.pos++
		}
		if !digits() {
			return bad()
		}
	}
	return Value{Kind: Number, Text: string(p.data[start:p.pos])}
}

// text reads a string whose opening quote has been taken.
func (p *parser) text() string {
	var dst []byte
	start := p.pos
	for p.pos < len(p.data) {
		c := p.data[p.pos]
		switch {
		case c == '"':
			s := p.data[start:p.pos]
			p.pos++
			if dst == nil {
				return string(s)
			}
			return string(append(dst, s...))
		case c == '\\':
			dst = append(dst, p.data[start:p.pos]...)
			if dst = p.escape(dst); p.err != nil {
				return string(dst)
			}
			start = p.pos
		case c < ' ':
			s := append(dst, p.data[start:p.pos]...)
			p.fail(fmt.Sprintf("control character %#02x in a string", c))
			return string(s)
		case c < utf8.RuneSelf:
			p.pos++
		default:
			r, n := utf8.DecodeRune(p.data[p.pos:])
			if r != utf8.RuneError || n != 1 {
				p.pos += n
				break
			}
			dst = append(append(dst, p.data[start:p.pos]...), "\ufffd"...)
			p.pos++
			start = p.pos
		}
	}
	p.cut()
	return string(append(dst, p.data[start:]...))
}

// escape reads one escape sequence at the backslash, or the two that make a
// surrogate pair.
func (p *parser) escape(dst []byte) []byte {
	if p.pos+1 >= len(p.data) {
		p.cut()
		return dst
	}
	c := p.data[p.pos+1]
	switch c {
	case '"', '\\', '/':
		dst = append(dst, c)
	case 'n':
		dst = append(dst, '\n')
	case 'r':
		dst = append(dst, '\r')
	case 't':
		dst = append(dst, '\t')
	case 'b':
		dst = append(dst, '\b')
	case 'f':
		dst = append(dst, '\f')
	case 'u':
		r, ok := p.unit(p.pos)
		if !ok {
			return dst
		}
		p.pos += 6
		if r >= 0xd800 && r < 0xdc00 && p.pos+6 <= len(p.data) && p.data[p.pos] == '\\' && p.data[p.pos+1] == 'u' {
			if low, ok := p.unit(p.pos); !ok {
				return appendSurrogate(dst, r)
			} else if low >= 0xdc00 && low < 0xe000 {
				p.pos += 6
				return utf8.AppendRune(dst, 0x10000+(r-0xd800)<<10+(low-0xdc00))
			}
		}
		if r >= 0xd800 && r < 0xe000 {
			return appendSurrogate(dst, r)
		}
		return utf8.AppendRune(dst, r)
	default:
		p.fail(fmt.Sprintf(`unknown escape \%c`, c))
		return dst
	}
	p.pos += 2
	return dst
}

// unit reads the four digits of the \u at pos.
func (p *parser) unit(pos int) (rune, bool) {
	var r rune
	for i := pos + 2; i < pos+6; i++ {
		if i >= len(p.data) {
			p.cut()
			return 0, false
		}
		c := p.data[i]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			p.fail(`\u needs four hexadecimal digits`)
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
