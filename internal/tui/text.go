package tui

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes one line of foreign text readable and harmless: escape sequences,
// control characters and those that turn the direction of writing are gone, line
// breaks and tabs are blanks, what is not UTF-8 is U+FFFD. Of a line that was
// written over, as progress bars do, the last version counts. At most limit
// characters are left; what was longer ends in an ellipsis.
func Clean(s string, limit int) string {
	if len(s) > 16*limit+4096 {
		s = s[:16*limit+4096] // lest a line of megabytes costs as much
	}
	s = strings.TrimRight(s, "\r\n")
	if i := strings.LastIndexByte(s, '\r'); i >= 0 {
		s = s[i+1:]
	}
	var b strings.Builder
	n := 0
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			i += escape(s[i:])
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		switch {
		case r == '\t' || r == '\n':
			r = ' '
		case !unicode.IsGraphic(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029':
			continue
		}
		if n++; n > limit {
			b.WriteRune('…')
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// escape returns how long the escape sequence at the beginning of s is. None goes
// on past a line's end.
// Source: ECMA-48, 5.4 and 8.3.
func escape(s string) int {
	if len(s) < 2 {
		return len(s)
	}
	switch s[1] {
	case '[': // parameters, then one byte from @ on
		i := 2
		for i < len(s) && s[i] >= 0x20 && s[i] < 0x40 {
			i++
		}
		if i < len(s) && s[i] >= 0x40 && s[i] <= 0x7e {
			i++
		}
		return i
	case ']', 'P', 'X', '^', '_': // a string that BEL or ESC \ ends
		end := strings.IndexAny(s[2:], "\a\x1b\n")
		switch {
		case end < 0:
			return len(s)
		case s[2+end] == '\a':
			return end + 3
		case strings.HasPrefix(s[2+end:], "\x1b\\"):
			return end + 4
		}
		return end + 2
	case '\n', '\r', 0x1b:
		return 1
	}
	i := 1
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2f { // intermediate bytes
		i++
	}
	if i < len(s) && s[i] >= 0x30 && s[i] <= 0x7e {
		i++
	}
	return i
}

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
