package flight

import (
	"bytes"
	"fmt"
)

// json reads JSON. It takes commas and colons for blanks, and finds the mistakes only by which values
// would be lost.
func (d *document) json() error {
	if err := d.element(0); err != nil {
		return err
	}
	if c := d.next(); c != 0 {
		return fmt.Errorf("%q after the end", c)
	}
	return nil
}

// next returns the next byte of a value, 0 at the end.
func (d *document) next() byte {
	for ; d.pos < len(d.data); d.pos++ {
		if c := d.data[d.pos]; c > ' ' && c != ',' && c != ':' {
			return c
		}
	}
	return 0
}

// element reads one value and pushes it.
func (d *document) element(depth int) error {
	start, negative, n := len(d.stack), false, int64(0)
	c := d.next()
	switch {
	case c == 0:
		return errCut
	case d.made > maxValues || depth > maxDepth:
		return errMany
	case c == '"':
		return d.quoted()
	case c == '[' || c == '{':
		k, end := kindList, c+2
		if d.pos++; c == '{' {
			k = kindDict
		}
		for d.next() != end {
			if err := d.element(depth + 1); err != nil {
				return err
			}
		}
		if d.pos++; k == kindDict && (len(d.stack)-start)%2 != 0 {
			return fmt.Errorf("a name without a value")
		}
		d.list(k, start)
		return nil
	case bytes.IndexByte([]byte("-0123456789tfn"), c) < 0:
		return fmt.Errorf("%q is not JSON", c)
	}
	// A number, read up to its point, or a word, read as its first letter.
	for whole := true; d.pos < len(d.data); d.pos++ {
		switch c := d.data[d.pos]; {
		case c >= '0' && c <= '9' && whole:
			n = 10*n + int64(c-'0')
		case c == '.' || c == 'e':
			whole = false
		case c == ',' || c == ']' || c == '}' || c <= ' ':
			if negative {
				n = -n
			}
			d.push(value{n: n})
			return nil
		case c == '-' && whole:
			negative = true
		case c == 't':
			n, whole = 1, false
		}
	}
	return errCut
}

func (d *document) quoted() error {
	start := d.pos + 1
	for end := start; ; end++ {
		i := bytes.IndexByte(d.data[end:], '"')
		if i < 0 {
			return errCut
		}
		end += i
		first := end
		for first > start && d.data[first-1] == '\\' {
			first--
		}
		if (end-first)%2 == 0 {
			d.pos = end + 1
			d.push(value{kind: kindText, a: int32(start), b: int32(end)})
			return nil
		}
	}
}
