package console

import (
	"strconv"
	"strings"

	"github.com/muster-run/muster/launch"
)

// Quote shows a text from outside between the quotes that argparse uses, with
// what a terminal might act upon escaped and no more than a line's worth.
func Quote(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "..."
	}
	return "'" + strings.ReplaceAll(Printable(s), "'", `\'`) + "'"
}

// Printable escapes what a terminal might act upon.
func Printable(s string) string {
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// ShellWords joins words so that a shell would take them apart again.
func ShellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		plain := word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !IsPlain(r) })
		if quoted[i] = word; !plain {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// IsPlain reports whether no shell sees more than itself in a character
// within a word.
func IsPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@%", r)
}

// Wrap breaks a text into lines of at most width characters.
func Wrap(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// Split takes errors that were joined apart again, so that each gets its line.
func Split(err error) []error {
	if err == nil {
		return nil
	}
	if invalid, ok := err.(*launch.ConfigError); ok {
		return Split(invalid.Err)
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, err := range joined.Unwrap() {
			all = append(all, Split(err)...)
		}
		return all
	}
	return []error{err}
}

// MaxColumn is how long a value may be to make the others' column as wide.
const MaxColumn = 40
