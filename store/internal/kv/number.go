package kv

import (
	"bytes"
	"strconv"
)

// ParseInt reads a number as C++'s stoll does: leading white space, a sign,
// digits, and whatever follows is ignored. It reports false where there are no
// digits or the number does not fit.
func ParseInt(b []byte) (int64, bool) {
	b = bytes.TrimLeft(b, " \t\n\v\f\r")
	end := 0
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		end++
	}
	for end < len(b) && b[end] >= '0' && b[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(b[:end]), 10, 64)
	if err != nil {
		return 0, false
	}
	return n, true
}
