package tui

import (
	"strings"
	"unicode"
)

// Width is how many columns a terminal needs for s.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// Fit returns s in exactly width columns: cut, with an ellipsis, or filled up with
// blanks.
func Fit(s string, width int) string {
	s = Cut(s, width)
	return s + strings.Repeat(" ", max(0, width-Width(s)))
}

// FitRight is Fit with the blanks before the text.
func FitRight(s string, width int) string {
	s = Cut(s, width)
	return strings.Repeat(" ", max(0, width-Width(s))) + s
}

// Cut returns s in at most width columns; what was longer ends in an ellipsis.
func Cut(s string, width int) string {
	if len(s) <= width || Width(s) <= width {
		return s
	}
	n := 0
	for i, r := range s {
		if n += runeWidth(r); n > width-1 {
			if width < 1 {
				return ""
			}
			return s[:i] + "…"
		}
	}
	return s
}

// runeWidth is the columns of one character.
func runeWidth(r rune) int {
	switch {
	case r < 0x20 || r == 0x7f:
		return 0
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case wide(r):
		return 2
	}
	return 1
}

// wide says whether a character takes two columns.
// Source: the ranges of EastAsianWidth.txt (W and F) that hold letters and emoji.
func wide(r rune) bool {
	switch {
	case r < 0x1100:
		return false
	case r <= 0x115f, r == 0x2329, r == 0x232a,
		r >= 0x2e80 && r <= 0xa4cf && r != 0x303f,
		r >= 0xa960 && r <= 0xa97f,
		r >= 0xac00 && r <= 0xd7a3,
		r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f,
		r >= 0xff00 && r <= 0xff60,
		r >= 0xffe0 && r <= 0xffe6,
		r >= 0x1f300 && r <= 0x1f64f,
		r >= 0x1f680 && r <= 0x1f6ff,
		r >= 0x1f900 && r <= 0x1f9ff,
		r >= 0x20000 && r <= 0x3fffd:
		return true
	}
	return false
}
