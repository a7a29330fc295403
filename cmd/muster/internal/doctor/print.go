package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
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
			b.WriteString(group + "\n")
		}
		count[l.Status]++
		fmt.Fprintf(&b, "  %-8s %s: %s\n", l.Status, l.Check, text.Line(l.Text, len(l.Text)))
		if l.Advice != "" && l.Status != OK {
			fmt.Fprintf(&b, "  %-8s -> %s\n", "", text.Line(l.Advice, len(l.Advice)))
		}
	}
	fmt.Fprintf(&b, "\n%s: %s\n", r.Host, summary(count))
	_, err := io.WriteString(w, b.String())
	return err
}

// summary counts the lines.
func summary(count map[Status]int) string {
	failures, warnings := text.Count(count[Failure], "failure"), text.Count(count[Warning], "warning")
	switch {
	case count[Failure] > 0 && count[Warning] > 0:
		return failures + ", " + warnings
	case count[Failure] > 0:
		return failures
	case count[Warning] > 0:
		return "no failure, " + warnings
	}
	return "all is well"
}

// WriteJSON writes the report as one line of JSON.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// lastLines are the last n lines of output.
func lastLines(output []byte, n int) string { return text.Tail(output, n, 300, " | ") }
