package failure

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// WriteText writes the report for people, with one Write, as `muster report` lays it out: a
// first line that says what happened, what the root cause said, and a line for each other
// worker. Size and line lengths are bounded; terminal control sequences of workers do not
// get through.
func (r *Report) WriteText(w io.Writer) error {
	_, err := io.WriteString(w, r.headline()+r.details())
	return err
}

// headline says in a line what happened, in others who preempted the job and which rule
// has decided what follows.
func (r *Report) headline() string {
	said, root := "", r.Root()
	if r.Preempted != nil {
		said = r.Preempted.Text()
	} else if root == nil {
		said = "muster: " + oneLine(r.Title, maxName) + " FAILED: no worker's failure was recorded\n"
	}
	if root != nil {
		said += "muster: " + root.Where()
		if r.Restarts > 0 {
			said += fmt.Sprintf(" in attempt_%d (after %d of %d restarts)", r.Attempt, r.Attempt, r.Restarts)
		}
		said += ": " + root.Cause + "\n"
	}
	if r.Decision != "" {
		said += "muster: " + oneLine(r.Decision, maxCause) + "\n"
	}
	return said
}

// details say the rest.
func (r *Report) details() string {
	var b strings.Builder
	if root := r.Root(); root != nil {
		outcome := "failed"
		if r.Preempted != nil {
			outcome = "preempted"
		}
		b.WriteString(oneLine(r.Title, maxName) + ": " + outcome + "\n")
		root.write(&b)
	}
	if r.Autopsy != "" {
		b.WriteString("  what the workers did before that:\n    " + oneLine(r.Autopsy, maxCause) + "\n")
		if r.AutopsyFile != "" {
			b.WriteString("    evidence: " + text.Clip(printable(r.AutopsyFile), maxPath) + "\n")
		}
	}
	return b.String() + r.Others()
}

// Others says in lines of text what became of the other workers, and what the report lacks.
func (r *Report) Others() string {
	var b strings.Builder
	if len(r.Failures) > 1 {
		b.WriteString("  other workers:\n")
		others := slices.Clone(r.Failures[1:])
		slices.SortStableFunc(others[:min(len(others), maxListed)], func(x, y *ProcessFailure) int { return x.Rank - y.Rank })
		list(&b, "    ", maxListed, others, func(f *ProcessFailure) string { return f.Beside(r.Failures[0]) })
	}
	if len(r.Silent) > 0 {
		b.WriteString("  hosts that did not answer:\n")
		list(&b, "    ", maxListed, r.Silent, strings.Clone)
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(&b, "  left out of the report: %s of other hosts\n", text.Count(r.LeftOut, "worker"))
	}
	return b.String()
}

// list writes a line for each of a list, for most of them.
func list[T any](b *strings.Builder, indent string, most int, all []T, say func(T) string) {
	for _, one := range all[:min(len(all), most)] {
		b.WriteString(indent + oneLine(say(one), maxCause+2*maxName) + "\n")
	}
	if len(all) > most {
		fmt.Fprintf(b, "%sand %d more\n", indent, len(all)-most)
	}
}

// write writes what is known of the root cause besides its cause.
func (f *ProcessFailure) write(b *strings.Builder) {
	for _, row := range [...]struct{ name, text string }{
		{"hint", f.Hint}, {"GPUs", f.GPU}, {"failed at", f.FailedAt.Local().Format(time.DateTime)}, {"note", f.note()},
		{"log", text.Clip(printable(f.StderrPath), maxPath)},
		{"core dump", text.Clip(printable(f.Core), maxPath)},
	} {
		if row.text != "" {
			fmt.Fprintf(b, "  %-9s  %s\n", row.name, row.text)
		}
	}
	if title, said := f.Said(); said != "" {
		b.WriteString("  " + title + ":\n    " + strings.ReplaceAll(said, "\n", "\n    ") + "\n")
	}
}

// Said is what tells most of what the worker said, and its name: its traceback, a message of several lines, or the last
// lines of its output. It is empty if there is nothing.
func (f *ProcessFailure) Said() (title, said string) {
	switch {
	case f.Traceback != "":
		title, said = "traceback", f.Traceback
	case strings.Contains(f.Message, "\n"): // more than the cause has
		title, said = "message", f.Message
	default:
		title, said = "last lines of stderr", strings.Join(f.LastLines, "\n")
		if f.Mixed {
			title = "last lines of output"
		}
	}
	return title, strings.TrimRight(boundTraceback(printable(said), maxTraceback), " \t\n")
}

// note says what is wrong with the error file.
func (f *ProcessFailure) note() string {
	if f.Note == "" {
		return ""
	}
	return "the error file " + f.Note
}
