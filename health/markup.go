package health

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"strings"
	"time"
	"unicode"

	"github.com/muster-run/muster/health/jobstate"
)

// A page is HTML that is being written.
type page struct {
	bytes.Buffer
	s    *jobstate.State
	many bool // workers of several hosts are shown
	gpus bool // and GPUs of some
}

// markup is text that is HTML already. Nothing that a Source gave is ever made one.
type markup string

// put writes HTML. Every argument is escaped unless it is markup or a number.
func (p *page) put(format string, args ...any) {
	for i, arg := range args {
		switch v := arg.(type) {
		case markup, int, int64, float64:
		case string:
			args[i] = escapeHTML(v)
		default:
			args[i] = escapeHTML(fmt.Sprint(v))
		}
	}
	fmt.Fprintf(p, format, args...)
}

// escapeHTML makes any text safe inside an element and inside a quoted attribute.
// Control characters, and those that turn the direction of writing, are left out.
func escapeHTML(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsGraphic(r) && !unicode.Is(unicode.Bidi_Control, r) {
			return r
		}
		return -1
	}, s))
}

// span writes a duration for people: "0.3 s", "12 s", "3 min 5 s", "42 min", "2 h 7 min".
func span(d time.Duration) string {
	d = max(d, 0)
	day := 24 * time.Hour
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d >= 10*time.Minute && d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/day, d%day/time.Hour)
}

// A tone is the colour class of a state. The state is always written too.
type tone = markup

const (
	calm tone = "calm" // nothing to say
	good tone = "good"
	wait tone = "wait"
	warn tone = "warn"
	bad  tone = "bad"
	done tone = "done"
)

// tones are those of the states of workers that have one, phases and kinds those of phases and of
// kinds of moments.
var (
	tones = map[string]tone{"HEALTHY": good, "SUCCEEDED": done, "INIT": wait, "STOPPED": warn, "FAILED": bad,
		"UNHEALTHY": bad}
	phases = map[jobstate.Phase]tone{jobstate.Running: good, jobstate.InRendezvous: wait, jobstate.Assigning: wait,
		jobstate.Restarting: warn, jobstate.ExitBarrier: done}
	kinds = map[string]tone{jobstate.KindFailure: bad, jobstate.KindRestart: warn, jobstate.KindHosts: wait,
		jobstate.KindLive: wait, jobstate.KindRound: good}
)

func toneOf(state string) tone { return cmp.Or(tones[state], calm) }

// phaseTone is that of a job's phase.
func phaseTone(job *jobstate.Job) tone {
	if job.Phase == jobstate.Ended {
		return toneOf(job.State)
	}
	return cmp.Or(phases[job.Phase], calm)
}

// tone is that of a moment.
func (p *page) tone(m *jobstate.Moment) tone {
	if m.Kind == jobstate.KindEnd {
		return phaseTone(&p.s.Job)
	}
	return cmp.Or(kinds[m.Kind], calm)
}
