package failure

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/muster-run/muster/internal/format/text"
)

// WriteTorchrun writes the report as torchrun does, with one Write and within the same
// bounds: WriteText's first line, then torchrun's block with its fields, to which cause,
// hint, note and log are added where there is something to say. Workers that the agent
// stopped are listed apart, one line each.
func (r *Report) WriteTorchrun(w io.Writer) error {
	_, err := io.WriteString(w, r.headline()+r.block())
	return err
}

// childFailed is the line under which torchrun prints the block.
const childFailed = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "

func (r *Report) block() string {
	root := r.Root()
	if root == nil {
		return r.gaps()
	}
	title := oneLine(r.Title, maxName) + " FAILED"
	t := textReport{width: utf8.RuneCountInString(title)}
	var others, peers []*ProcessFailure
	for _, f := range r.Failures[1:] {
		if f.Stopped() {
			peers = append(peers, f)
		} else {
			others = append(others, f)
		}
	}
	t.entry(0, root, maxTraceback)
	cause := t.take()
	for i, f := range others[:min(len(others), maxListed)] {
		t.entry(i+1, f, maxTraceback/4)
	}
	if len(others) > maxListed {
		list(&t.b, "  ", maxCompact, others[maxListed:], (*ProcessFailure).Error)
	}
	if len(others) == 0 {
		t.b.WriteString("  <NO_OTHER_FAILURES>\n")
	}
	failures := t.take()
	list(&t.b, "  ", maxCompact, peers, func(f *ProcessFailure) string { return f.Where() + ": " + f.stopping() })
	stopped := t.take()

	width := min(t.width, 60)
	border, rule := strings.Repeat("=", width)+"\n", strings.Repeat("-", width)+"\n"
	var b strings.Builder
	b.WriteString(childFailed + "\n" + border + title + "\n" + rule + "Failures:\n" + failures)
	b.WriteString(rule + "Root Cause (first observed failure):\n" + cause)
	if stopped != "" {
		b.WriteString(rule + "Stopped by muster after the failure:\n" + stopped)
	}
	if r.Autopsy != "" {
		b.WriteString(rule + "What the workers did before that:\n  " + oneLine(r.Autopsy, maxCause) + "\n")
		if r.AutopsyFile != "" {
			b.WriteString("  evidence  : " + text.Clip(printable(r.AutopsyFile), maxPath) + "\n")
		}
	}
	if gaps := r.gaps(); gaps != "" {
		b.WriteString(rule + gaps)
	}
	b.WriteString(border)
	return b.String()
}

// gaps says what the report does not know.
func (r *Report) gaps() string {
	var b strings.Builder
	if len(r.Silent) > 0 {
		b.WriteString("Hosts that did not answer:\n")
		list(&b, "  ", maxListed, r.Silent, strings.Clone)
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(&b, "Left out for want of room: %d workers of other hosts\n", r.LeftOut)
	}
	return b.String()
}

// A textReport collects lines.
type textReport struct {
	b     strings.Builder
	width int // of the longest line that torchrun's report has too
}

func (t *textReport) take() string {
	s := t.b.String()
	t.b.Reset()
	return s
}

// entry writes one failure in full.
// Source: _FAILURE_FORMAT_TEMPLATE.
func (t *textReport) entry(index int, f *ProcessFailure, limit int) {
	signal := ""
	if f.Signal != 0 {
		signal = " (" + f.Signal.String() + ")"
	}
	file := notAvailable
	if f.ErrorFile != "" {
		file = text.Clip(printable(f.ErrorFile), maxPath)
	}
	t.lines(fmt.Sprintf("[%d]:", index),
		"  time      : "+f.FailedAt.Local().Format("2006-01-02_15:04:05"),
		"  host      : "+oneLine(f.Host, maxName),
		fmt.Sprintf("  rank      : %d (local_rank: %d)", f.Rank, f.LocalRank),
		fmt.Sprintf("  exitcode  : %d (pid: %d) %s", f.ExitCode, f.PID, signal),
		"  error_file: "+file)
	for _, l := range [...]struct{ name, text string }{
		{"cause", f.Cause}, {"hint", f.Hint}, {"note", f.note()}, {"log", text.Clip(printable(f.StderrPath), maxPath)},
	} {
		if l.text != "" {
			fmt.Fprintf(&t.b, "  %-10s: %s\n", l.name, l.text)
		}
	}
	shown := f.Message
	switch {
	case f.Traceback != "":
		shown = indent(f.Traceback, limit)
	case f.Recorded && (f.file == nil || f.file.Object):
		shown = indent(f.Message, limit)
	case shown == enableTraceback: // which would not help: muster looks at stderr, too
		shown = "none, neither in an error file nor on the worker's stderr"
	default:
		shown = boundTraceback(printable(shown), limit)
	}
	t.lines("  traceback : " + shown)
	if len(f.LastLines) > 0 {
		count := "the last line"
		if len(f.LastLines) > 1 {
			count = fmt.Sprintf("the last %d lines", len(f.LastLines))
		}
		name := "stderr"
		if f.Mixed {
			name = "output"
		}
		fmt.Fprintf(&t.b, "  %-10s: %s\n", name, count)
		for _, l := range f.LastLines {
			t.b.WriteString("    " + l + "\n")
		}
	}
}

// indent puts a traceback two columns in, as torchrun does, which leaves a
// line of two blanks where it ends in a newline.
func indent(s string, limit int) string {
	return strings.ReplaceAll(boundTraceback(printable(s), limit), "\n", "\n  ")
}

// lines writes lines and takes note of their width.
func (t *textReport) lines(lines ...string) {
	for _, l := range lines {
		for part := range strings.SplitSeq(l, "\n") {
			t.width = max(t.width, utf8.RuneCountInString(part))
		}
		t.b.WriteString(l + "\n")
	}
}
