package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/process/warm"
)

// A topView is what `muster top` shows. It does no I/O: State in, lines out.
type topView struct {
	state    *health.State // of the agent that speaks for the job, with what others say
	many     bool          // there are workers of several hosts
	problem  string        // why there is no newer state
	problems []string      // why others are missing
}

// take takes in what the agents have said. Where none has, the state before stays.
func (v *topView) take(a answers) {
	if a.err != nil {
		v.problem = a.err.Error()
		return
	}
	v.state = a.states[0]
	for _, other := range a.states[1:] {
		v.state.Add(other)
	}
	v.many = slices.ContainsFunc(v.state.Workers, func(w health.Worker) bool {
		return w.GroupRank != v.state.Workers[0].GroupRank
	})
	v.problem, v.problems = "", slices.Clone(a.problems)
	for _, h := range v.state.Hosts {
		if h.Problem != "" {
			v.problems = append(v.problems, fmt.Sprintf("host %d: %s", h.GroupRank, h.Problem))
		}
	}
}

// lines draws the view, in at most height lines of at most width columns.
func (v *topView) lines(width, height int) []string {
	lines := append(v.head(width), "")
	workers, history := v.workers(), v.history()
	room := height - len(lines) - 1 // below the table's heading
	rows := max(0, min(len(workers), max(3, room-min(len(history)+2, 6)), room))
	lines = append(lines, v.table(workers, rows, width)...)
	if free := height - len(lines) - 2; free > 0 && len(history) > 0 {
		lines = append(lines, "", "time line")
		lines = append(lines, history[max(0, len(history)-free):]...)
	}
	lines = lines[:max(0, min(len(lines), height))]
	for i, line := range lines {
		lines[i] = strings.TrimRight(cut(line, width), " ")
	}
	return lines
}

// head draws what is known of the job as a whole.
func (v *topView) head(width int) []string {
	s := v.state
	job := &s.Job
	how := string(job.Phase) + " " + job.State
	if job.Preempted != nil {
		how = string(job.Phase) + " PREEMPTED"
	}
	title := "muster " + text.Line(cmp.Or(job.Entrypoint, job.RunID), 100) + "  " + text.Line(how, 60)
	if job.Entrypoint != "" {
		title += "  " + text.Line(job.RunID, 100)
	}
	clock := s.Time.Local().Format("15:04:05")
	if room := width - len(clock) - 1; room > 0 {
		title = fit(title, room) + " " + clock
	}
	lines := []string{title, strings.Join(v.facts(), "  ")}
	if job.WaitingFor != "" {
		lines = append(lines, "waits for "+text.Line(job.WaitingFor, 300))
	}
	if by := job.Preempted; by != nil {
		note := fmt.Sprintf("preempted: host %s received %s at %s", by.Host, by.Signal, by.Time.Local().Format("15:04:05"))
		lines = append(lines, text.Line(note, 300))
	}
	if len(s.Hosts) > 0 {
		lines = append(lines, v.hosts())
	}
	if s.LiveTimers > 0 {
		lines = append(lines, text.Count(s.LiveTimers, "timer"))
	}
	if w := s.Host.Warm; w != nil {
		lines = append(lines, warmText(w))
	}
	if len(s.Failures) > 0 {
		lines = append(lines, v.failure())
	}
	problems := v.problems
	if v.problem != "" {
		problems = []string{v.problem}
	}
	const shown = 4
	for i, p := range problems {
		if i == shown {
			p = fmt.Sprintf("and %d more hosts are missing", len(problems)-i)
		}
		if i <= shown {
			lines = append(lines, text.Line(p, 400))
		}
	}
	return lines
}

// warmText says what warm starts cost the host that answers.
func warmText(w *warm.Stats) string {
	how := "no template"
	if w.Ready {
		how = fmt.Sprintf("template %s, built in %.1f s", sizeOf(w.PSSBytes), w.BuildSeconds)
	}
	return fmt.Sprintf("warm starts: %s; %d warm, %d cold", how, w.WarmStarts, w.ColdStarts)
}

// facts are the numbers of the job.
func (v *topView) facts() []string {
	job := &v.state.Job
	facts := []string{fmt.Sprintf("round %d", job.Round), fmt.Sprintf("restarts %d/%d", job.Restarts, job.MaxRestarts)}
	if job.WorldSize > 0 {
		facts = append(facts, fmt.Sprintf("world %d", job.WorldSize))
	}
	if !job.Started.IsZero() {
		facts = append(facts, "up "+age(v.state.Time.Sub(job.Started)))
	}
	if job.Backend != "" {
		facts = append(facts, text.Line(job.Backend+" "+job.Endpoint, 200))
	}
	return facts
}

// hosts draws the hosts of the round; the one that answers has a star.
func (v *topView) hosts() string {
	s := v.state
	line := text.Count(len(s.Hosts), "host") + ":"
	for i := range s.Hosts[:min(len(s.Hosts), 64)] {
		h := &s.Hosts[i]
		line += " " + text.Line(cmp.Or(h.Name, "host "+strconv.Itoa(h.GroupRank)), 80)
		if h.GroupRank == s.Host.GroupRank {
			line += "*"
		}
		if h.State != "" && h.State != "HEALTHY" && h.State != "SUCCEEDED" {
			line += " " + text.Line(h.State, 20)
		}
		if h.Workers > 0 {
			line += " (" + strconv.Itoa(h.Workers) + ")"
		}
	}
	return line
}

// failure draws the root cause of the last failure.
func (v *topView) failure() string {
	f := &v.state.Failures[0]
	line := "last failure"
	if !f.Time.IsZero() {
		line += " " + age(v.state.Time.Sub(f.Time)) + " ago"
	}
	line += ": rank " + strconv.Itoa(f.Rank)
	if f.Host != "" {
		line += " on " + text.Line(f.Host, 80)
	}
	line += ": " + text.Line(f.Cause, 300)
	told := strings.Contains(f.Cause, f.Message) || strings.HasPrefix(f.Message, noTraceback)
	if f.Message != "" && !told {
		line += ": " + text.Line(f.Message, 300)
	}
	return line
}

// noTraceback begins what torchrun says of a failure of which it knows nothing.
const noTraceback = "To enable traceback see: "

// history draws the time line, the newest last.
func (v *topView) history() (lines []string) {
	for i := range v.state.Timeline {
		m := &v.state.Timeline[i]
		line := m.Time.Local().Format("15:04:05") + "  " + text.Line(m.What, 200)
		if m.Why != "" {
			line += ": " + text.Line(m.Why, 300)
		}
		lines = append(lines, line)
	}
	return lines
}

// age is a duration as short as it can be said: 4s, 12m, 3h05m, 2d04h.
func age(d time.Duration) string {
	switch d = max(0, d); {
	case d < 100*time.Second:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 100*time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// sizeOf is a number of bytes in three digits: 812M, 1.2G.
func sizeOf(n int64) string {
	value, units := float64(max(0, n)), "KMGTPE"
	value /= 1024
	for len(units) > 1 && value >= 999.5 {
		value, units = value/1024, units[1:]
	}
	if value < 9.95 && units[0] != 'K' {
		return fmt.Sprintf("%.1f%c", value, units[0])
	}
	return fmt.Sprintf("%.0f%c", value, units[0])
}

// cut returns what has room in a number of columns; what was longer ends in dots.
func cut(s string, width int) string {
	dots := max(0, min(3, width))
	n, end := 0, 0
	for i, r := range s {
		if n <= width-dots {
			end = i
		}
		if n += columnsOf(r); n > width {
			return s[:end] + "..."[:dots]
		}
	}
	return s
}

// fit returns s in exactly width columns.
func fit(s string, width int) string { return cut(s, width) + blanks(s, width) }

// fitRight is fit with the blanks before the text.
func fitRight(s string, width int) string { return blanks(s, width) + cut(s, width) }

// blanks are what s lacks to have width columns once it is cut.
func blanks(s string, width int) string {
	for _, r := range cut(s, width) {
		width -= columnsOf(r)
	}
	return strings.Repeat(" ", max(0, width))
}

// columnsOf is how many columns a terminal needs for a character.
func columnsOf(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana),
		r >= 0x3000 && r <= 0x303e, r >= 0xff00 && r <= 0xff60, r >= 0x1f300 && r <= 0x1faff: // punctuation, emoji
		return 2
	}
	return 1
}
