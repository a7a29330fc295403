package failure

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/format/text"
)

// Bounds of what the report shows.
const (
	maxTraceback = 64 << 10 // bytes of one traceback
	maxCause     = 400      // runes of a cause
	maxName      = 255      // runes of a host, a title, a path's part
	maxPath      = 4096     // runes of a path
	maxTailLines = 20       // lines of stderr
	maxTailLine  = 500      // runes of each
	maxListed    = 32       // failures shown in full; the rest get one line each
	maxCompact   = 1024     // lines of that kind; the rest are counted
)

const notAvailable = "<N/A>"

// oneLine makes s a single printable line of at most limit runes. Line breaks
// and runs of blanks become one blank.
func oneLine(s string, limit int) string {
	if len(s) > 8*limit {
		s = s[:8*limit]
	}
	s = strings.Join(strings.Fields(printable(s)), " ")
	n := 0
	for i := range s {
		if n++; n > limit {
			return strings.TrimRight(s[:i], " ") + "..."
		}
	}
	return s
}

// printable returns s as valid UTF-8 without terminal control sequences. Line
// feeds and tabs stay; other control characters become U+FFFD.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f }) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || r == '\u2028' || r == '\u2029' ||
			unicode.Is(unicode.Bidi_Control, r)) {
			return utf8.RuneError
		}
		return r
	}, pyjson.Clean(stripANSI(s)))
}

// stripANSI removes terminal control sequences (colours, titles, cursor
// movement). Python 3.13 writes tracebacks in colour to terminals.
func stripANSI(s string) string {
	var b strings.Builder
	for i := strings.IndexByte(s, 0x1b); i >= 0; i = strings.IndexByte(s, 0x1b) {
		b.WriteString(s[:i])
		s = s[i+text.Escape(s[i:]):]
	}
	if b.Len() == 0 {
		return s
	}
	return b.String() + s
}

// boundTraceback leaves out the middle of a traceback longer than limit bytes:
// its heading stays, and the end, which says what went wrong.
func boundTraceback(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, _, _ := strings.Cut(s[:min(len(s), 200)], "\n")
	for len(head) > 0 && !utf8.ValidString(head) {
		head = head[:len(head)-1]
	}
	cut := len(s) - limit + len(head) + 60
	if i := strings.IndexByte(s[cut:min(len(s), cut+2048)], '\n'); i >= 0 {
		cut += i + 1
	} else {
		for cut < len(s) && !utf8.RuneStart(s[cut]) {
			cut++
		}
	}
	return fmt.Sprintf("%s\n[... %d bytes left out ...]\n%s", head, cut-len(head), s[cut:])
}

// lastLines returns the last n lines as a person would have seen them: of a line that was
// overwritten by carriage returns its last state. It leaves out blank lines before the first.
func lastLines(stderr []byte, n int) []string {
	const window = 64 << 10
	if len(stderr) > window {
		stderr = stderr[len(stderr)-window:]
	}
	lines := strings.Split(strings.TrimRight(string(stderr), " \t\r\n"), "\n")
	lines = lines[max(0, len(lines)-n):]
	out := make([]string, 0, len(lines))
	for _, line := range lines {
		line = strings.TrimRight(line, " \t\r")
		if i := strings.LastIndexByte(line, '\r'); i >= 0 {
			line = line[i+1:]
		}
		out = append(out, text.Clip(strings.TrimRight(printable(line), " \t"), maxTailLine))
	}
	for len(out) > 0 && out[0] == "" {
		out = out[1:]
	}
	return out
}
