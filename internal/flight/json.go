package flight

import "bytes"

var words = [...]struct {
	text  []byte
	value value
}{{[]byte("null"), value{}}, {[]byte("false"), value{kind: kindNumber}}, {[]byte("true"), value{kind: kindNumber, n: 1}}}

// json reads a document that nlohmann's JSON has written: what is not JSON is refused where that
// matters to finding values, and not everywhere.
func (d *document) json() error {
	if err := d.element(0); err != nil {
		return err
	}
	if c := d.next(); c != 0 {
		return d.errorf("%q after the end", c)
	}
	return nil
}

// next skips blanks and returns the byte after them, 0 at the end.
func (d *document) next() byte {
	for ; d.pos < len(d.data); d.pos++ {
		if c := d.data[d.pos]; c > ' ' {
			return c
		}
	}
	return 0
}

// element reads one value and pushes it.
func (d *document) element(depth int) error {
	if d.made > maxValues || depth > maxDepth {
		return d.errorf("more than %d values, or nested deeper than %d", maxValues, maxDepth)
	}
	switch c := d.next(); {
	case c == '"':
		return d.quoted()
	case c == '{' || c == '[':
		return d.several(c, depth)
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	case c == 0:
		return d.errorf("%w", errCut)
	}
	for _, word := range words {
		if bytes.HasPrefix(d.data[d.pos:], word.text) {
			d.pos += len(word.text)
			d.push(word.value)
			return nil
		}
		if bytes.HasPrefix(word.text, d.data[d.pos:]) {
			return d.errorf("%w", errCut)
		}
	}
	return d.errorf("%q is not JSON", d.data[d.pos])
}

// several reads a list or an object.
func (d *document) several(open byte, depth int) error {
	start, k, end := len(d.stack), kindList, byte(']')
	if open == '{' {
		k, end = kindDict, '}'
	}
	d.pos++
	for c := d.next(); c != end; {
		if k == kindDict {
			if c != '"' {
				return d.expected(`a name`, c)
			}
			if err := d.quoted(); err != nil {
				return err
			}
			if c = d.next(); c != ':' {
				return d.expected("a colon", c)
			}
			d.pos++
		}
		if err := d.element(depth + 1); err != nil {
			return err
		}
		switch c = d.next(); c {
		case ',':
			d.pos++
			c = d.next()
		case end:
		default:
			return d.expected("a comma or the end of the list", c)
		}
	}
	d.pos++
	d.list(k, start)
	return nil
}

func (d *document) expected(what string, c byte) error {
	if c == 0 {
		return d.errorf("%w", errCut)
	}
	return d.errorf("%q where %s must be", c, what)
}

func (d *document) quoted() error {
	start := d.pos + 1
	for end := start; ; end++ {
		i := bytes.IndexByte(d.data[end:], '"')
		if i < 0 {
			return d.errorf("%w", errCut)
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

// number reads an integer, or the integer part of another number.
func (d *document) number() error {
	negative := d.data[d.pos] == '-'
	if negative {
		d.pos++
	}
	n, whole := int64(0), true
	for ; d.pos < len(d.data); d.pos++ {
		switch c := d.data[d.pos]; {
		case c >= '0' && c <= '9':
			if digit := int64(c - '0'); whole {
				if n > (1<<63-1-digit)/10 {
					return d.errorf("a number of more than 63 bits")
				}
				n = 10*n + digit
			}
		case c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-':
			whole = false
		default:
			d.pushNumber(n, negative)
			return nil
		}
	}
	return d.errorf("%w", errCut)
}

func (d *document) pushNumber(n int64, negative bool) {
	if negative {
		n = -n
	}
	d.push(value{kind: kindNumber, n: n})
}
