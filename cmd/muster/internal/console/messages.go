package console

import (
	_ "embed"
	"strings"
)

// messages has a line for each warning and error of the log, and for each error that ends a
// job: its ID, and its text with … for what differs. docs/handbook.md explains each. An ID
// keeps its meaning: one that has no message any more stays as a line without a text.
//
//go:embed messages.txt
var messages string

// anything is the ellipsis, for which any text may stand.
const anything = "\u2026"

// tag is what lines of the log, and errors, end with: the ID of their message in brackets,
// "" if it has none. Where several texts fit, the longest counts.
func tag(message string) string {
	id, longest := "", 0
	for line := range strings.Lines(messages) {
		key, pattern, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if len(pattern) > longest && fits(message, pattern) {
			id, longest = " ["+key+"]", len(pattern)
		}
	}
	return id
}

// fits reports whether a text is a pattern, in which … stands for anything.
func fits(text, pattern string) bool {
	piece, pattern, more := strings.Cut(pattern, anything)
	if !more {
		return text == piece
	}
	text, ok := strings.CutPrefix(text, piece)
	for ok && more {
		if piece, pattern, more = strings.Cut(pattern, anything); more {
			_, text, ok = strings.Cut(text, piece)
		}
	}
	return ok && strings.HasSuffix(text, piece)
}
