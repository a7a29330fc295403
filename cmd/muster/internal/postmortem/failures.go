package postmortem

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
)

// What is kept of a text from a file, at most.
const (
	maxFailures  = 1_000
	maxLine      = 400 // characters
	maxTraceback = 64 << 10
)

// clean makes a text from a file one safe line.
func clean(s string) string { return text.Line(s, maxLine) }

// paragraph makes a text of several lines safe to show; of a long one the end is left.
func paragraph(s string) string {
	if len(s) > maxTraceback {
		s = s[len(s)-maxTraceback:]
		_, s, _ = strings.Cut(s, "\n")
	}
	s = strings.TrimRight(s, " \t\r\n")
	if s == "" {
		return ""
	}
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(clean(strings.TrimRight(lines[i], "\r")), " ")
	}
	return strings.Join(lines, "\n")
}

// report reads report.json, as far as there is one.
func (rd *reader) report(run *Run, a *Attempt) {
	path := filepath.Join(a.Dir, "report.json")
	body, err := rd.file(path, maxReport)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		a.problem("%s: %v", path, err)
		return
	}
	if err := a.parseReport(run, body); err != nil {
		a.problem("%s: %v", path, err)
	}
	if a.Cause != "" || len(a.Failures) > 0 {
		a.Report = path
		if a.Outcome == Unknown {
			a.Outcome = Failed
		}
	}
}

// parseReport takes in the document that failure.Report writes. What is of the
// wrong kind is left out, and is the error.
func (a *Attempt) parseReport(run *Run, body []byte) error {
	doc, err := failure.ParseReport(body)
	if newer := doc.CheckVersion(); newer != nil {
		a.problem("%v", newer)
	}
	run.Title, run.RunID, run.Host = cmp.Or(doc.Title, run.Title), cmp.Or(doc.RunID, run.RunID), cmp.Or(doc.Host, run.Host)
	if doc.Restarts >= 0 {
		run.MaxRestarts = doc.Restarts
	}
	for i := 0; doc.FirstRank >= 0 && i < len(a.Workers); i++ {
		a.Workers[i].Rank = doc.FirstRank + a.Workers[i].LocalRank
	}
	a.Cause, a.Silent = doc.Cause, doc.Silent[:min(len(doc.Silent), maxFailures)]
	a.Failures = doc.Failures[:min(len(doc.Failures), maxFailures)]
	a.LeftOut = doc.LeftOut + len(doc.Failures) - len(a.Failures)
	if doc.Preempted != nil {
		a.preempt(doc.Preempted)
	}
	return err
}

// guess finds failures where nobody has written a report, as under torchrun: in
// the error files of torch's @record, and in tracebacks at the ends of stderr.log.
func (rd *reader) guess(run *Run, a *Attempt) {
	var found []*failure.ProcessFailure
	for _, w := range a.Workers {
		if f := rd.guessWorker(a, w); f != nil {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return
	}
	report := failure.NewReport(failure.ReportConfig{Host: run.Host}, found)
	a.Outcome, a.Cause, a.Failures = Failed, report.Cause, report.Failures
}

// guessWorker explains one worker; nil if there is nothing to see.
func (rd *reader) guessWorker(a *Attempt, w Worker) *failure.ProcessFailure {
	o := failure.Observation{LocalRank: w.LocalRank, Rank: w.Rank, ExitCode: failure.UnknownExit,
		ErrorFile: w.ErrorFile, StderrPath: w.Stderr}
	if w.Stderr != "" {
		var err error
		if o.StderrTail, o.Ended, err = rd.end(w.Stderr); err != nil {
			a.problem("%s: %v", w.Stderr, err)
		}
	}
	if info, err := os.Lstat(w.ErrorFile); err == nil && info.Mode().IsRegular() && info.ModTime().After(o.Ended) {
		o.Ended = info.ModTime()
	}
	f := failure.New(o)
	if f.Traceback == "" && w.ErrorFile == "" {
		return nil
	}
	if f.Traceback == "" && f.Note != "" && len(f.LastLines) == 0 {
		a.problem("%s: %s", w.ErrorFile, f.Note)
		return nil
	}
	return f
}
