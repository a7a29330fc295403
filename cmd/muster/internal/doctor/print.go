package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// WriteText writes the report for people: lines in groups, what to do below them,
// and a summary.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	group := ""
	count := map[Status]int{}
	for _, l := range r.Lines {
		if l.Group != group {
			if group != "" {
				b.WriteByte('\n')
			}
			group = l.Group
			fmt.Fprintf(&b, "%s\n", group)
		}
		count[l.Status]++
		fmt.Fprintf(&b, "  %-8s %s: %s\n", l.Status, l.Check, printable(l.Text))
		if l.Advice != "" && l.Status != OK {
			fmt.Fprintf(&b, "  %-8s -> %s\n", "", printable(l.Advice))
		}
	}
	fmt.Fprintf(&b, "\n%s: %s\n", r.Host, summary(count))
	_, err := io.WriteString(w, b.String())
	return err
}

// summary counts the lines.
func summary(count map[Status]int) string {
	switch {
	case count[Failure] > 0 && count[Warning] > 0:
		return plural(count[Failure], "failure") + ", " + plural(count[Warning], "warning")
	case count[Failure] > 0:
		return plural(count[Failure], "failure")
	case count[Warning] > 0:
		return "no failure, " + plural(count[Warning], "warning")
	}
	return "all is well"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// WriteJSON writes the report as one line of JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	if r.Lines == nil {
		r.Lines = []Line{}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// printable makes a text from outside safe for a terminal and one line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == unicode.ReplacementChar || unicode.IsPrint(r):
			return r
		}
		return '?'
	}, s)
}

// lastLines returns the last n lines of a text that are not empty, joined.
func lastLines(text []byte, n int) string {
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, clip(line, 300))
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// clip cuts a text to at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}
