package logs

import "bytes"

// Output is copied in units. A unit is a line with its newline, or one update
// of a progress bar: what is between two carriage returns, with those at its
// beginning. "\r 10%\r 20%\n" is two units; carriage returns before a newline
// belong to it.

// unitsEnd returns how much of b, which begins with a unit or in one, but not with its
// carriage returns, is whole units. b[:scanned] is known to hold no newline.
func unitsEnd(b []byte, scanned int) int {
	end := bytes.LastIndexByte(b[scanned:], '\n') + 1
	if end > 0 {
		end += scanned
	}
	rest := bytes.TrimRight(b[end:], "\r") // what they belong to is not known yet
	cr := bytes.LastIndexByte(rest, '\r')
	if cr < 0 {
		return end
	}
	return end + len(bytes.TrimRight(rest[:cr], "\r"))
}

// unitLen returns the length of the unit that b, which holds whole units, begins with.
func unitLen(b []byte) int {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i+1]
	}
	from := leadingCRs(b)
	cr := bytes.IndexByte(b[from:], '\r')
	if cr < 0 {
		return len(b)
	}
	cr += from
	next := cr + leadingCRs(b[cr:])
	if next == len(b) || b[next] == '\n' {
		return len(b)
	}
	return cr
}

// leadingCRs returns how many carriage returns b begins with.
func leadingCRs(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r")) }

// appendUnit appends a unit with its prefix, which comes after the carriage
// returns that take the cursor to the beginning of the line.
func appendUnit(out, prefix, unit []byte) []byte {
	crs := 0
	if unit[0] == '\r' {
		if crs = leadingCRs(unit); crs == len(unit) || unit[crs] == '\n' {
			crs = 0
		}
	}
	out = append(out, unit[:crs]...)
	out = append(out, prefix...)
	return append(out, unit[crs:]...)
}
