package kv

import "math"

// ParseInt reads a number as C++'s stoll does: leading white space, a sign,
// digits, and whatever follows is ignored. It reports false where there are no
// digits or the number does not fit.
func ParseInt(b []byte) (int64, bool) {
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] >= '\t' && b[i] <= '\r') {
		i++
	}
	negative := false
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		negative = b[i] == '-'
		i++
	}
	limit := uint64(math.MaxInt64)
	if negative {
		limit++
	}
	start, n := i, uint64(0)
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		digit := uint64(b[i] - '0')
		if n > (limit-digit)/10 {
			return 0, false
		}
		n = n*10 + digit
	}
	if i == start {
		return 0, false
	}
	if negative {
		return -int64(n), true
	}
	return int64(n), true
}
