package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/tui"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/process/warm"
)

// A sortKey is what the workers are sorted by.
type sortKey int

const (
	byRank sortKey = iota
	byCPU
	byMemory
	byStep
	byOutput
	sortKeys
)

func (k sortKey) String() string {
	return [...]string{"rank", "CPU", "memory", "step, lowest first", "output, oldest first"}[k]
}

// A topView is what `muster top` shows. It does no I/O: State in, lines out.
type topView struct {
	asked    string        // which agent
	state    *health.State // of the agent that speaks for the job, with what others say; nil before the first
	many     bool          // there are workers of several hosts
	problem  string        // why there is no newer state
	problems []string      // why others are missing
	sort     sortKey
	selected int // rank of a worker; -1: none
	stderr   bool
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
	v.many = slices.ContainsFunc(v.state.Workers, func(w health.Worker) bool { return w.GroupRank != v.state.Workers[0].GroupRank })
	v.problem, v.problems = "", slices.Clone(a.problems)
	for _, h := range v.state.Hosts {
		if h.Problem != "" {
			v.problems = append(v.problems, fmt.Sprintf("host %d: %s", h.GroupRank, h.Problem))
		}
	}
}

// key does what a key asks for. It returns false for the end.
func (v *topView) key(key tui.Key) bool {
	switch key {
	case 'q', 'Q', tui.KeyInterrupt, 4: // 4: Ctrl-D
		return false
	case tui.KeyUp, 'k':
		v.move(-1)
	case tui.KeyDown, 'j':
		v.move(1)
	case tui.KeyPageUp:
		v.move(-10)
	case tui.KeyPageDown:
		v.move(10)
	case tui.KeyHome:
		v.move(-1 << 30)
	case tui.KeyEnd:
		v.move(1 << 30)
	case tui.KeyEscape:
		v.selected = -1
	case 'r':
		v.sort = (v.sort + 1) % sortKeys
	case '\t', 'e':
		v.stderr = !v.stderr
	}
	return true
}

// move chooses another worker.
func (v *topView) move(by int) {
	workers := v.workers()
	if len(workers) == 0 {
		return
	}
	at := indexOf(workers, v.selected)
	switch {
	case at < 0 && by > 0:
		at = min(by, len(workers)) - 1
	case at < 0:
		at = len(workers) - 1
		if by < -1 {
			at = 0
		}
	default:
		at = min(max(at+by, 0), len(workers)-1)
	}
	v.selected = workers[at].Rank
}

// workers returns the workers in the order in which they are shown.
func (v *topView) workers() []topWorker {
	if v.state == nil {
		return nil
	}
	var list []topWorker
	for i := range v.state.Workers {
		list = append(list, topWorker{&v.state.Workers[i], v.state.Time})
	}
	slices.SortStableFunc(list, func(a, b topWorker) int {
		by := 0
		switch v.sort {
		case byCPU:
			by = cmp.Compare(b.Usage.CPUPercent, a.Usage.CPUPercent)
		case byMemory:
			by = cmp.Compare(b.Usage.RSSBytes, a.Usage.RSSBytes)
		case byStep:
			by = cmp.Compare(stepOf(a), stepOf(b))
		case byOutput:
			by = a.LastOutput.Compare(b.LastOutput)
		}
		return cmp.Or(by, cmp.Compare(a.Rank, b.Rank))
	})
	return list
}

// indexOf is where the worker of a rank is; -1 if it is not there.
func indexOf(workers []topWorker, rank int) int {
	return slices.IndexFunc(workers, func(w topWorker) bool { return w.Rank == rank })
}

func stepOf(w topWorker) int64 {
	if w.Heartbeat == nil {
		return -1
	}
	return w.Heartbeat.Step
}

// render draws the whole screen.
func (v *topView) render(width, height int) []tui.Line {
	footer := tui.Line{{Text: "q quit  ↑↓ worker  r sort: " + v.sort.String(), Style: tui.Dim}}
	if v.selected >= 0 {
		footer[0].Text += "  e " + map[bool]string{true: "stdout", false: "stderr"}[v.stderr] + "  esc back"
	}
	lines := v.body(width, max(0, height-1))
	for len(lines) < height-1 {
		lines = append(lines, nil)
	}
	return append(lines[:max(0, min(len(lines), height-1))], footer)
}

// body draws what is above the last line, in at most height lines.
func (v *topView) body(width, height int) []tui.Line {
	if v.state == nil {
		why := "asking " + v.asked + " …"
		if v.problem != "" {
			why = v.problem
		}
		return []tui.Line{{{Text: text.Line(why, 4*max(width, 1)), Style: tui.Yellow}}}
	}
	lines := v.head(width)
	workers := v.workers()
	detail, history := v.detail(workers), v.history(width)
	room := height - len(lines) - 2 // an empty line and the table's heading
	rows := min(len(workers), max(3, room-len(detail)-min(len(history), 5)))
	rows = max(0, min(rows, room))
	lines = append(lines, nil)
	lines = append(lines, v.table(workers, rows, width)...)
	for _, part := range [][]tui.Line{detail, history} {
		if free := height - len(lines) - 1; free >= 2 && len(part) > 1 {
			lines = append(lines, nil, part[0])
			part = part[1:]
			lines = append(lines, part[max(0, len(part)-free+1):]...)
		}
	}
	return lines
}

// head draws what is known of the job as a whole.
func (v *topView) head(width int) []tui.Line {
	s := v.state
	job := &s.Job
	style := tui.Green
	if !job.Runs() {
		style = tui.Yellow
	}
	how := string(job.Phase) + " " + job.State
	if job.Preempted != nil {
		how = string(job.Phase) + " PREEMPTED"
	}
	title := tui.Line{{Text: "muster "}, {Text: text.Line(cmp.Or(job.Entrypoint, job.RunID), 100), Style: tui.Bold}, {Text: "  "}, {Text: text.Line(how, 60), Style: style}}
	if job.Entrypoint != "" {
		title = append(title, tui.Span{Text: "  " + text.Line(job.RunID, 100)})
	}
	clock := s.Time.Local().Format("15:04:05")
	if room := width - tui.Width(clock) - 1; room > 0 {
		title = title.Fit(room)
		title = append(title, tui.Span{Text: strings.Repeat(" ", room-tui.Width(title.String())+1) + clock})
	}
	lines := []tui.Line{title, {{Text: strings.Join(v.facts(), "  ")}}}
	if job.WaitingFor != "" {
		lines = append(lines, tui.Line{{Text: "waits for " + text.Line(job.WaitingFor, 300), Style: tui.Yellow}})
	}
	if by := job.Preempted; by != nil {
		note := fmt.Sprintf("preempted: host %s received %s at %s", by.Host, by.Signal, by.Time.Local().Format("15:04:05"))
		lines = append(lines, tui.Line{{Text: text.Line(note, 300), Style: tui.Yellow}})
	}
	if line := v.hosts(); line != nil {
		lines = append(lines, line)
	}
	if line := v.timers(); line != nil {
		lines = append(lines, line)
	}
	if w := s.Host.Warm; w != nil {
		lines = append(lines, tui.Line{{Text: warmText(w)}})
	}
	if line := v.failure(); line != nil {
		lines = append(lines, line)
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
			lines = append(lines, tui.Line{{Text: text.Line(p, 400), Style: tui.Yellow}})
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
func (v *topView) hosts() tui.Line {
	s := v.state
	if len(s.Hosts) == 0 {
		return nil
	}
	line := tui.Line{{Text: text.Count(len(s.Hosts), "host") + ":"}}
	for i := range s.Hosts[:min(len(s.Hosts), 64)] {
		h := &s.Hosts[i]
		name := text.Line(cmp.Or(h.Name, h.Addr, "host "+strconv.Itoa(h.GroupRank)), 80)
		if h.GroupRank == s.Host.GroupRank {
			name += "*"
		}
		style := tui.Plain
		if h.State != "" && h.State != "HEALTHY" && h.State != "SUCCEEDED" {
			style, name = tui.Yellow, name+" "+text.Line(h.State, 20)
		}
		if h.Workers > 0 {
			name += " (" + strconv.Itoa(h.Workers) + ")"
		}
		line = append(line, tui.Span{Text: " "}, tui.Span{Text: name, Style: style})
	}
	return line
}

// timers draws the next deadline.
func (v *topView) timers() tui.Line {
	s := v.state
	if len(s.Timers) == 0 {
		return nil
	}
	t := &s.Timers[0]
	style, when := tui.Plain, fmt.Sprintf("next in %.1f s", t.Remaining)
	if t.Remaining < 0 {
		style, when = tui.Red, fmt.Sprintf("one has expired %.1f s ago", -t.Remaining)
	}
	who := "pid " + strconv.Itoa(t.PID)
	if t.Rank >= 0 {
		who = "rank " + strconv.Itoa(t.Rank)
	}
	if t.Scope != "" {
		who += ", " + text.Line(t.Scope, 60)
	}
	return tui.Line{{Text: text.Count(max(s.LiveTimers, len(s.Timers)), "timer") + ": "}, {Text: when, Style: style}, {Text: " (" + who + ")"}}
}

// failure draws the root cause of the last failure.
func (v *topView) failure() tui.Line {
	if len(v.state.Failures) == 0 {
		return nil
	}
	f := &v.state.Failures[0]
	what := "rank " + strconv.Itoa(f.Rank)
	if f.Host != "" {
		what += " on " + text.Line(f.Host, 80)
	}
	what += ": " + text.Line(f.Cause, 300)
	if f.Message != "" && !strings.Contains(f.Cause, f.Message) && !strings.HasPrefix(f.Message, noTraceback) {
		what += ": " + text.Line(f.Message, 300)
	}
	when := ""
	if !f.Time.IsZero() {
		when = " " + age(v.state.Time.Sub(f.Time)) + " ago"
	}
	return tui.Line{{Text: "last failure" + when + ": ", Style: tui.Red}, {Text: what}}
}

// noTraceback begins what torchrun says of a failure of which it knows nothing.
const noTraceback = "To enable traceback see: "

// history draws the time line, the newest last.
func (v *topView) history(width int) []tui.Line {
	lines := []tui.Line{heading("time line", width)}
	for i := range v.state.Timeline {
		m := &v.state.Timeline[i]
		style := tui.Plain
		switch {
		case m.IsFailure():
			style = tui.Red
		case m.IsRestart():
			style = tui.Yellow
		}
		line := tui.Line{{Text: m.Time.Local().Format("15:04:05") + "  ", Style: tui.Dim}, {Text: text.Line(m.What, 200), Style: style}}
		if m.Why != "" {
			line = append(line, tui.Span{Text: ": " + text.Line(m.Why, 300)})
		}
		lines = append(lines, line)
	}
	return lines
}

// detail draws the last lines of the chosen worker.
func (v *topView) detail(workers []topWorker) []tui.Line {
	at := indexOf(workers, v.selected)
	if at < 0 {
		return nil
	}
	w := workers[at]
	name, path, output := "stdout", w.Stdout, w.StdoutLines
	if v.stderr {
		name, path, output = "stderr", w.Stderr, w.StderrLines
	}
	title := fmt.Sprintf("%s of rank %d", name, w.Rank)
	if v.many {
		title += " on " + text.Line(w.Host, 80)
	}
	if path != "" {
		title += "  " + text.Line(path, 4096)
	}
	lines := []tui.Line{{{Text: title, Style: tui.Cyan}}}
	for _, t := range output {
		lines = append(lines, tui.Line{{Text: text.Line(t, 1000)}})
	}
	if len(output) == 0 {
		why := "(nothing)"
		if path == "" {
			why = "(not kept in a file; start the job with --tee 3 or --redirects 3)"
		}
		lines = append(lines, tui.Line{{Text: why, Style: tui.Dim}})
	}
	return lines
}

func heading(title string, width int) tui.Line {
	return tui.Line{{Text: tui.Fit(title, width), Style: tui.Cyan}}
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
