package failure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/format/text"
)

const (
	maxDetail = 32 << 10 // bytes of a traceback on its way to another host
	briefSize = 512      // about what a failure without its details takes
	maxDecode = 64 << 10 // failures in one list
)

// MarshalJSON returns report.json. Unlike the lists of Encode it has every key, in
// the order of the structs' fields: what is not known is null. A field that is
// tagged pyjson:"optional" may be absent. All of it is ASCII, which does nothing to
// a terminal.
func (r *Report) MarshalJSON() ([]byte, error) { return pyjson.AppendStruct(nil, r), nil }

// WriteJSON writes MarshalJSON's document and a newline, with one Write.
func (r *Report) WriteJSON(w io.Writer) error {
	_, err := w.Write(append(pyjson.AppendStruct(nil, r), '\n'))
	return err
}

// ParseReport reads report.json, of this release or an older one. Nothing in it is
// trusted: what can be shown is bounded and printable. It returns what it can read,
// along with the error that says what it cannot.
func ParseReport(text []byte) (*Report, error) {
	r := &Report{ReportConfig: ReportConfig{Restarts: -1, FirstRank: -1}} // if it does not say
	err := json.Unmarshal(text, r)
	for _, s := range [...]*string{&r.Title, &r.RunID, &r.Host, &r.Cause, &r.Autopsy, &r.Decision} {
		*s = oneLine(*s, maxCause)
	}
	for i := range r.Silent {
		r.Silent[i] = oneLine(r.Silent[i], maxCause)
	}
	r.AutopsyFile, r.LeftOut = oneLine(r.AutopsyFile, maxPath), max(0, r.LeftOut)
	r.Failures = slices.DeleteFunc(r.Failures, func(f *ProcessFailure) bool { return f == nil })
	for _, f := range r.Failures {
		f.tidy()
	}
	r.Preempted.tidy()
	return r, err
}

// Encode returns failures as a list of JSON for the agents of other hosts, which
// read it with Decode. The list has at most limit bytes. To that end the middle of
// long tracebacks is left out, then the details of later failures, then those
// failures, the last ones first; left is how many.
// Times are told by a clock that is offset ahead of this host's.
func Encode(failures []*ProcessFailure, offset time.Duration, limit int) (text []byte, left int) {
	text = []byte("[")
	for i, f := range failures {
		room := limit - len(text) - len(",]")
		reserve := briefSize * (len(failures) - i - 1) // for those that follow
		if i == 0 {
			reserve = min(reserve, room/2) // whatever they need
		}
		detail := min((room-reserve-briefSize)/2, maxDetail)
		item := f.encode(offset, detail)
		for ; detail > 0 && len(item) > room-reserve; detail /= 3 { // escapes take room too
			item = f.encode(offset, detail/3)
		}
		if len(item) > room {
			left = len(failures) - i
			break
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, item...)
	}
	return append(text, ']'), left
}

// encode returns one failure with at most about detail bytes of details.
func (f *ProcessFailure) encode(offset time.Duration, detail int) []byte {
	c := *f
	c.shift(offset)
	if c.Stopped() && c.ErrorFile == "" && c.Traceback == "" {
		detail = 0
	}
	c.Message = boundTraceback(c.Message, max(detail/4, 500))
	if c.Traceback = boundTraceback(c.Traceback, max(detail, 500)); detail < 500 {
		c.Traceback, c.TracebackFrom, c.LastLines = "", "", nil
	}
	text, _ := json.Marshal(&c) // no field of it can fail
	return text
}

// Decode reads what Encode wrote on a host whose clock is, by the common one, offset
// ahead of this host's. Nothing in it is trusted: what can be shown is bounded and
// printable.
func Decode(text []byte, offset time.Duration) ([]*ProcessFailure, error) {
	var failures []*ProcessFailure
	if n, _ := pyjson.Elements(text); n > maxDecode { // a short text may hold many
		return nil, fmt.Errorf("a list of failures: it has more than %d members", maxDecode)
	}
	if err := json.Unmarshal(text, &failures); err != nil {
		return nil, fmt.Errorf("a list of failures: %w", err)
	}
	for i, f := range failures {
		err := errors.New("it has no failed_at or no cause")
		if f != nil {
			if f.tidy(); !f.FailedAt.IsZero() && f.Cause != "" {
				f.shift(-offset)
				continue
			}
		}
		return nil, fmt.Errorf("failure %d of a list: %w", i, err)
	}
	return failures, nil
}

// shift tells the times by a clock that is d ahead.
func (f *ProcessFailure) shift(d time.Duration) {
	for _, t := range [...]*time.Time{&f.FailedAt, &f.Started, &f.Ended} {
		if !t.IsZero() {
			*t = t.Add(d)
		}
	}
}

// tidy bounds what came from elsewhere and makes it printable.
func (f *ProcessFailure) tidy() {
	for _, s := range [...]struct {
		text  *string
		limit int
	}{
		{&f.Host, maxName}, {&f.Cause, maxCause}, {&f.Hint, maxCause}, {&f.StartError, maxTailLine}, {&f.OOM, maxName},
		{&f.GPU, maxCause}, {&f.Core, maxPath}, {&f.Abandoned, maxName},
		{&f.TimerExpired, maxName}, {&f.ErrorFile, maxPath}, {&f.Note, maxCause}, {&f.TracebackFrom, maxName},
		{&f.StderrPath, maxPath},
	} {
		*s.text = oneLine(*s.text, s.limit)
	}
	if !slices.Contains(kinds[:], f.Kind) {
		f.Kind = failed
	}
	for _, t := range [...]*time.Time{&f.FailedAt, &f.Started, &f.Ended} {
		tidyTime(t)
	}
	f.Rank, f.LocalRank, f.PID = max(-1, f.Rank), max(0, f.LocalRank), max(0, f.PID)
	f.ExitCode = min(max(-maxSignal, f.ExitCode), UnknownExit)
	f.Signal = Signal(f.signal())
	if f.Message = multiline(f.Message); f.Message == "" {
		f.Message = enableTraceback
	}
	f.Traceback = multiline(f.Traceback)
	f.LastLines = f.LastLines[max(0, len(f.LastLines)-maxTailLines):]
	f.Collectives = f.Collectives[:min(len(f.Collectives), maxGroups)]
	for i, line := range f.LastLines {
		f.LastLines[i] = text.Clip(strings.ReplaceAll(printable(line), "\n", " "), maxTailLine)
	}
}

// tidy does that for a preemption, or none.
func (p *Preemption) tidy() {
	if p == nil {
		return
	}
	p.Host, p.CutShort = oneLine(p.Host, maxName), oneLine(p.CutShort, maxName)
	tidyTime(&p.Time)
	for i := range p.Workers {
		w := &p.Workers[i]
		w.LocalRank, w.PID = max(0, w.LocalRank), max(0, w.PID)
		w.Rank = max(w.Rank, w.LocalRank)
		tidyTime(&w.Ended)
	}
}

// tidyTime forgets a time that cannot be, or that JSON has no form for.
func tidyTime(t *time.Time) {
	if t.Year() < 1980 || t.Year() > 9000 {
		*t = time.Time{}
	}
}

// multiline is text of many lines as a failure has it: printable and bounded.
func multiline(s string) string { return boundTraceback(printable(s), maxTraceback) }
