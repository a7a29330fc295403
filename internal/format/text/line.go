package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line makes one line of what others wrote safe for a terminal: escape sequences,
// control characters and those that turn the direction of writing are dropped, line
// breaks and tabs become blanks, and what is not UTF-8 becomes U+FFFD. Of a line that
// was written over, as progress bars do, the last version counts. What is longer than
// limit characters ends in an ellipsis.
func Line(s string, limit int) string {
	s = strings.TrimRight(s, "\r\n")
	if i := strings.LastIndexByte(s, '\r'); i >= 0 {
		s = s[i+1:]
	}
	if len(s) > 16*limit+4096 {
		s = s[:16*limit+4096] // a line of megabytes costs no more
	}
	return clean(s, limit, false)
}

// Lines does the same for a text of several lines, as a message is: line breaks and
// tabs stay, and a carriage return hides nothing but becomes a blank.
func Lines(s string) string { return clean(s, len(s), true) }

// Tail joins the last n lines of what others wrote that are not blank, each as Line makes it.
func Tail(written []byte, n, limit int, sep string) string {
	var lines []string
	for line := range strings.Lines(string(written)) {
		if line = Line(line, limit); strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], sep)
}

func clean(s string, limit int, lines bool) string {
	var b strings.Builder
	n := 0
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			i += Escape(s[i:])
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		switch {
		case lines && (r == '\t' || r == '\n'):
		case r == '\t' || r == '\n' || r == '\r':
			r = ' '
		case !unicode.IsGraphic(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029':
			continue
		}
		if n++; n > limit {
			b.WriteString("...")
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Escape returns how long the escape sequence at the beginning of s is. It ends
// with the line at the latest.
// Source: ECMA-48, 5.4 and 8.3.
func Escape(s string) int {
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
