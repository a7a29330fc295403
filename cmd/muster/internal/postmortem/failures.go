package postmortem

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/harmless"
)

// What is kept of foreign text, at most.
const (
	maxFailures  = 1_000
	maxLine      = 400 // characters
	maxTraceback = 64 << 10
	maxLastLines = 20
)

// clean makes foreign text one harmless line.
func clean(s string) string { return harmless.Line(s, maxLine) }

// A Failure is one worker's, as report.json has it.
type Failure struct {
	Rank          int       `json:"rank"` // -1: not known
	LocalRank     int       `json:"local_rank"`
	Host          string    `json:"host,omitempty"`
	PID           int       `json:"pid,omitempty"`
	Kind          string    `json:"kind"` // failed, lost peer, stopped
	Root          bool      `json:"root,omitempty"`
	Cause         string    `json:"cause"`
	Hint          string    `json:"hint,omitempty"`
	FailedAt      time.Time `json:"failed_at,omitzero"`
	Started       time.Time `json:"started_at,omitzero"`
	Ended         time.Time `json:"ended_at,omitzero"`
	Traceback     string    `json:"traceback,omitempty"`
	TracebackFrom string    `json:"traceback_from,omitempty"`
	LastLines     []string  `json:"stderr_tail,omitempty"`
	ErrorFile     string    `json:"error_file,omitempty"`
	Note          string    `json:"error_file_note,omitempty"`
	Log           string    `json:"log,omitempty"`
}

// tidy bounds a failure and makes its texts harmless.
func (f *Failure) tidy() {
	for _, s := range [...]*string{&f.Host, &f.Kind, &f.Cause, &f.Hint, &f.TracebackFrom, &f.ErrorFile, &f.Note, &f.Log} {
		*s = clean(*s)
	}
	f.Rank, f.LocalRank, f.PID = max(-1, f.Rank), max(-1, f.LocalRank), max(0, f.PID)
	f.Traceback = paragraph(f.Traceback)
	f.LastLines = slices.Clone(f.LastLines[max(0, len(f.LastLines)-maxLastLines):])
	for i := range f.LastLines {
		f.LastLines[i] = clean(f.LastLines[i])
	}
}

// paragraph makes a text of several lines harmless; of a long one the end is left.
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
	var doc struct {
		Version     int         `json:"version"`
		Title       string      `json:"title"`
		RunID       string      `json:"run_id"`
		Host        string      `json:"host"`
		MaxRestarts *int        `json:"max_restarts"`
		Cause       string      `json:"cause"`
		Silent      []string    `json:"silent"`
		LeftOut     int         `json:"left_out"`
		Failures    []Failure   `json:"failures"`
		Preempted   *Preemption `json:"preempted"`
	}
	err := json.Unmarshal(body, &doc)
	if doc.Version > failure.ReportVersion {
		a.problem("report.json is of version %d; this muster knows %d and shows what it can", doc.Version, failure.ReportVersion)
	}
	set := func(to *string, text string) {
		if text = clean(text); text != "" {
			*to = text
		}
	}
	set(&run.Title, doc.Title)
	set(&run.RunID, doc.RunID)
	set(&run.Host, doc.Host)
	if doc.MaxRestarts != nil && *doc.MaxRestarts >= 0 {
		run.MaxRestarts = *doc.MaxRestarts
	}
	a.Cause = clean(doc.Cause)
	a.LeftOut = max(0, doc.LeftOut)
	for _, host := range doc.Silent[:min(len(doc.Silent), maxFailures)] {
		a.Silent = append(a.Silent, clean(host))
	}
	a.LeftOut += max(0, len(doc.Failures)-maxFailures)
	a.Failures = doc.Failures[:min(len(doc.Failures), maxFailures)]
	for i := range a.Failures {
		a.Failures[i].tidy()
	}
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
	a.Outcome = Failed
	for _, f := range failure.NewReport(failure.ReportConfig{}, found).Failures {
		own := Failure{
			Rank: f.Rank, LocalRank: f.LocalRank, PID: f.PID, Host: run.Host, Kind: string(f.Kind), Root: len(a.Failures) == 0,
			Cause: f.Cause, Hint: f.Hint, FailedAt: f.FailedAt,
			Traceback: f.Traceback, TracebackFrom: f.TracebackFrom, Log: f.StderrPath,
		}
		if f.File != nil {
			own.ErrorFile, own.Note = f.File.Path, f.File.Note
		}
		own.tidy()
		a.Failures = append(a.Failures, own)
	}
	root := &a.Failures[0]
	a.Cause = clean(root.Where() + ": " + root.Cause)
}

// guessWorker explains one worker; nil if there is nothing to see.
func (rd *reader) guessWorker(a *Attempt, w Worker) *failure.ProcessFailure {
	o := failure.Observation{LocalRank: w.LocalRank, Rank: w.Rank, PID: w.PID, ExitCode: 1, ErrorFile: w.ErrorFile, StderrPath: w.Stderr}
	if w.Stderr != "" {
		var err error
		if o.StderrTail, o.Time, err = rd.end(w.Stderr); err != nil {
			a.problem("%s: %v", w.Stderr, err)
		}
	}
	if w.ErrorFile == "" {
		if _, ok := failure.Lift(o.StderrTail, o.ExitCode); !ok {
			return nil
		}
		return failure.New(o)
	}
	file, _ := failure.ReadErrorFile(w.ErrorFile)
	if file != nil && file.ModTime.After(o.Time) {
		o.Time = file.ModTime
	}
	f := failure.New(o)
	if f.Traceback == "" && f.File != nil && f.File.Note != "" && len(f.LastLines) == 0 {
		a.problem("%s: %s", w.ErrorFile, f.File.Note)
		return nil
	}
	return f
}

// Where says which worker it is.
func (f *Failure) Where() string {
	p := failure.ProcessFailure{Observation: failure.Observation{Rank: f.Rank, LocalRank: f.LocalRank, PID: f.PID, Host: f.Host}}
	where := p.Where()
	if f.Rank < 0 {
		_, rest, _ := strings.Cut(where, "(")
		local, rest, _ := strings.Cut(rest, ")")
		where = strings.Replace(local, "local_rank", "local rank", 1) + rest
	}
	return where
}
