package postmortem

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
)

// shownAttempts is how many attempts WriteText shows in full.
const shownAttempts = 10

// WriteText writes the run for people: what became of it, a line for each attempt,
// then each attempt in full, with the root cause's traceback or last lines and
// where its files are. Of many attempts the last ten are in full.
func (run *Run) WriteText(w io.Writer) error {
	var b strings.Builder
	run.heading(&b)
	table := rows{}
	for i := range run.Attempts {
		a := &run.Attempts[i]
		table.add(a.Name, stamp(a.Started), span(a.Duration()), a.verdict())
	}
	if len(run.Attempts) > 1 { // one says the same below
		b.WriteByte('\n')
		table.write(&b, "  ")
	}
	seen := map[string]string{}
	full := run.Attempts[max(0, len(run.Attempts)-shownAttempts):]
	for i := range full {
		full[i].write(&b, seen)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteList writes a line for each run of a list.
func WriteList(w io.Writer, runs []Listed) error {
	table := rows{}
	for _, run := range runs {
		began := cmp.Or(run.Started, run.Time)
		table.add(stamp(began), text.Count(run.Attempts, "attempt"), string(run.Outcome), text.Line(run.Path, 4096), run.Cause)
	}
	return text.Columns(w, "", math.MaxInt, table)
}

// heading says what became of the run.
func (run *Run) heading(b *strings.Builder) {
	fmt.Fprintf(b, "%s: %s", cmp.Or(run.Title, "run "+run.RunID), run.verdict())
	if n := len(run.Attempts); n > 1 {
		fmt.Fprintf(b, " after %d attempts", n)
	}
	switch {
	case run.MaxRestarts > 0:
		fmt.Fprintf(b, ", %d of %d restarts used", run.Restarts, run.MaxRestarts)
	case run.Restarts > 0:
		b.WriteString(", " + text.Count(run.Restarts, "restart"))
	}
	last := run.Last()
	if last != nil && last.Preempted != nil && run.Outcome == Preempted {
		b.WriteString(": " + who(last.Preempted))
	} else if run.Cause != "" && (last == nil || last.Cause == "" || run.Outcome != Failed) {
		b.WriteString(": " + run.Cause)
	}
	b.WriteByte('\n')
	table := rows{}
	table.add("run id", run.RunID)
	table.fact("host", run.Host)
	if run.Outcome == Running || run.Outcome == Killed {
		who := fmt.Sprintf("pid %d on host %s", run.agent.Begin.PID, run.agent.Begin.Host)
		if run.Outcome == Killed {
			who += ", gone without a word"
		}
		table.add("agent", who)
	}
	if !run.Started.IsZero() {
		when := stamp(run.Started)
		if run.Ended.After(run.Started) {
			when += " to " + stamp(run.Ended) + ", " + span(run.Ended.Sub(run.Started))
		}
		table.fact("time", when)
	}
	if run.Outcome == Preempted {
		table.add("exit status", fmt.Sprintf("%d: it may be started again", failure.PreemptedStatus))
	}
	if len(run.Attempts) == 0 {
		table.add("workers", "none were started here")
	}
	table.add("directory", text.Line(run.Dir, 4096))
	table.fact("events", text.Line(run.Events, 4096))
	for _, p := range run.Problems {
		table.add("note", p)
	}
	table.write(b, "  ")
}

func (run *Run) verdict() string {
	switch run.Outcome {
	case Unknown:
		return "no failure is recorded (it went well, still runs, or was killed)"
	case Running:
		return "still runs"
	case Killed:
		return "was killed"
	case Left:
		return "continued without this host"
	}
	return string(run.Outcome)
}

// verdict is what became of an attempt, in one line.
func (a *Attempt) verdict() string {
	switch {
	case a.Preempted != nil:
		return "preempted: " + who(a.Preempted)
	case a.Cause != "":
		return a.Cause
	case a.Outcome == Renewed:
		return "restarted without a failure: hosts joined or left, or a user ran muster restart"
	case a.Outcome == Running:
		return "still runs"
	case a.Outcome != Unknown:
		return string(a.Outcome)
	}
	return "no failure is recorded"
}

// write writes an attempt in full. seen has the tracebacks that were shown, with
// the attempt where.
func (a *Attempt) write(b *strings.Builder, seen map[string]string) {
	fmt.Fprintf(b, "\n%s %s\n", a.Name, strings.Repeat("-", max(3, 72-len(a.Name))))
	table := rows{}
	if a.Preempted != nil || len(a.Failures) == 0 {
		table.add("result", a.verdict())
	}
	if len(a.Failures) > 0 {
		root := a.Failures[0]
		table.add("root cause", a.Cause)
		table.fact("hint", root.Hint)
		if !root.FailedAt.IsZero() {
			table.add("failed at", stamp(root.FailedAt))
		}
		if root.Note != "" {
			table.add("note", "the error file "+root.Note)
		}
		table.fact("GPUs", root.GPU)
		table.fact("core dump", root.Core)
	}
	if d := a.Duration(); d > 0 {
		text := span(d)
		if a.TimesFrom == "files" {
			text += ", going by the times of its files"
		}
		table.add("ran", text)
	}
	for _, p := range a.Problems {
		table.add("note", p)
	}
	table.write(b, "  ")
	a.writeText(b, seen)
	if a.Preempted != nil {
		writeEnds(b, a.Preempted)
	}
	all := failure.ReportConfig{Silent: a.Silent, LeftOut: a.LeftOut}
	b.WriteString((&failure.Report{ReportConfig: all, Failures: a.Failures}).Others())
	a.writeAutopsies(b)
	a.writeFiles(b)
}

// writeText writes what the root cause said.
func (a *Attempt) writeText(b *strings.Builder, seen map[string]string) {
	if len(a.Failures) == 0 {
		return
	}
	root := a.Failures[0]
	title, text := root.Said()
	if text == "" {
		return
	}
	if root.Traceback != "" && root.TracebackFrom != "" {
		title += " (" + root.TracebackFrom + ")"
	}
	if where := seen[text]; where != "" {
		fmt.Fprintf(b, "  %s: the same as of %s\n", title, where)
		return
	}
	seen[text] = a.Name
	fmt.Fprintf(b, "  %s:\n    %s\n", title, strings.ReplaceAll(text, "\n", "\n    "))
}

// shownOthers is how many workers get a line.
const shownOthers = 32

func (a *Attempt) writeAutopsies(b *strings.Builder) {
	for _, x := range a.Autopsies {
		reason := x.Reason
		if what, ok := strings.CutPrefix(reason, "hang: "); ok && strings.Contains(a.Cause, what) {
			reason = "hang"
		}
		fmt.Fprintf(b, "  what the workers did (%s):\n    %s\n", reason, strings.ReplaceAll(x.Summary, "\n", "\n    "))
		if x.File != "" {
			fmt.Fprintf(b, "    evidence: %s\n", text.Line(x.File, 4096))
		}
	}
}

// writeFiles writes where the files are.
func (a *Attempt) writeFiles(b *strings.Builder) {
	fmt.Fprintf(b, "  files in %s:\n", text.Line(a.Dir, 4096))
	table := rows{}
	what := "the failure for programs"
	if a.Outcome == Preempted {
		what = "the same for programs"
	}
	for _, f := range [...]struct{ path, what string }{{a.Report, what}, {a.GPUs, "what nvidia-smi -q said after that"}} {
		if f.path != "" {
			table.add(text.Line(filepath.Base(f.path), 400), f.what)
		}
	}
	for i, w := range a.Workers {
		if i == shownOthers {
			table.add("...", fmt.Sprintf("and of %d more workers", len(a.Workers)-i))
			break
		}
		var names []string
		for _, path := range []string{w.Stdout, w.Stderr, w.ErrorFile} {
			if path != "" {
				names = append(names, filepath.Base(path))
			}
		}
		if names == nil {
			names = []string{"no files: the output went to the console; --redirects 3 or --tee 3 keeps it"}
		}
		who := filepath.Base(w.Dir) + "/"
		if w.Rank >= 0 {
			who += fmt.Sprintf("  rank %d", w.Rank)
		}
		table.add(who, strings.Join(names, "  "))
	}
	table.write(b, "    ")
}

// stamp is a time as people write it; "-" for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// span is a duration in the precision that people want.
func span(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(1, d.Milliseconds()))
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}

// rows are lines of cells whose columns are aligned.
type rows [][]string

func (r *rows) add(cells ...string) { *r = append(*r, cells) }

// fact adds a value with its name, if there is one.
func (r *rows) fact(name, value string) {
	if value != "" {
		r.add(name, value)
	}
}

func (r rows) write(b *strings.Builder, indent string) { _ = text.Columns(b, indent, math.MaxInt, r) }
