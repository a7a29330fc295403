package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/process/warm"
)

// A topView is what `muster top` shows. It does no I/O: State in, lines out.
type topView struct {
	state    *jobstate.State // with what other hosts say
	problems []string        // why others are missing, or why there is no newer state
}

// take takes in a state.
func (v *topView) take(state *jobstate.State) {
	v.state, v.problems = state, nil
	for _, h := range v.state.Hosts {
		if h.Problem != "" {
			v.problems = append(v.problems, fmt.Sprintf("host %d: %s", h.GroupRank, h.Problem))
		}
	}
}

// lines draws the view, in at most height lines: three workers or more, and the end of the time
// line.
func (v *topView) lines(height int) []string {
	lines := append(v.head(), "")
	table, history := v.table(), v.history()
	rows := max(4, height-len(lines)-min(len(history)+2, 6))
	if rows < len(table) {
		lines[len(lines)-1] = fmt.Sprintf("the first %d of %d workers:", rows-1, len(table)-1)
		table = table[:rows]
	}
	lines = append(lines, table...)
	if free := height - len(lines) - 2; free > 0 && len(history) > 0 {
		lines = append(lines, "", "timeline")
		lines = append(lines, history[max(0, len(history)-free):]...)
	}
	return lines[:max(0, min(len(lines), height))]
}

// head draws what is known of the job as a whole.
func (v *topView) head() []string {
	s := v.state
	job := &s.Job
	title := "muster " + text.Line(cmp.Or(job.Entrypoint, job.RunID), 100) + "  " + text.Line(string(job.Phase), 40) + " "
	if job.Preempted != nil {
		title += "PREEMPTED"
	} else {
		title += text.Line(job.State, 40)
	}
	if job.Entrypoint != "" {
		title += "  " + text.Line(job.RunID, 100)
	}
	lines := []string{title + "  " + clock(s.Time), v.facts()}
	if job.WaitingFor != "" {
		lines = append(lines, "waiting: "+text.Line(job.WaitingFor, 300))
	}
	if by := job.Preempted; by != nil {
		note := fmt.Sprintf("preempted: host %s received %s at %s", by.Host, by.Signal, clock(by.Time))
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
	const shown = 4
	for _, p := range v.problems[:min(shown, len(v.problems))] {
		lines = append(lines, text.Line(p, 400))
	}
	if more := len(v.problems) - shown; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more hosts are missing", more))
	}
	return lines
}

// warmText says what warm starts cost the host that answers.
func warmText(w *warm.Stats) string {
	how := "no template"
	if w.Ready {
		how = fmt.Sprintf("template %s, built in %.1f s", text.Size(w.PSSBytes), w.BuildSeconds)
	}
	return fmt.Sprintf("warm starts: %s; %d warm, %d cold", how, w.WarmStarts, w.ColdStarts)
}

// facts are the numbers of the job.
func (v *topView) facts() string {
	job := &v.state.Job
	facts := fmt.Sprintf("round %d  restarts %d/%d", job.Round, job.Restarts, job.MaxRestarts)
	if job.WorldSize > 0 {
		facts += fmt.Sprintf("  world %d", job.WorldSize)
	}
	if !job.Started.IsZero() {
		facts += "  up " + v.since(job.Started)
	}
	if job.Backend != "" {
		facts += "  " + text.Line(job.Backend+" "+job.Endpoint, 200)
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
		line += " " + v.since(f.Time) + " ago"
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

// history draws the timeline, the newest last.
func (v *topView) history() (lines []string) {
	for i := range v.state.Timeline {
		m := &v.state.Timeline[i]
		line := clock(m.Time) + "  " + text.Line(m.What, 200)
		if m.Why != "" {
			line += ": " + text.Line(m.Why, 300)
		}
		lines = append(lines, line)
	}
	return lines
}

func clock(t time.Time) string { return t.Local().Format("15:04:05") }

// since is how long ago something was, by the answering host's clock, as all times are.
func (v *topView) since(t time.Time) string { return age(v.state.Time, t) }

// age is the time from then to now in whole seconds: 1h23m45s.
func age(now, then time.Time) string { return max(0, now.Sub(then)).Round(time.Second).String() }

// table draws the workers in order of rank, below a heading. It leaves out columns of which no
// worker has anything.
func (v *topView) table() []string {
	workers := slices.SortedFunc(slices.Values(v.state.Workers), func(a, b jobstate.Worker) int {
		return cmp.Compare(a.Rank, b.Rank)
	})
	if len(workers) == 0 {
		return []string{"no workers"}
	}
	many := workers[0].GroupRank != workers[len(workers)-1].GroupRank // ranks go up from host to host
	rows := [][]string{{"RANK", "HOST", "PID", "STATE", "CPU%", "MEM", "GPU%", "GMEM", "STEP", "PACE", "BEAT", "OUTPUT",
		"LAST LINE"}}
	for i := range workers {
		rows = append(rows, v.row(&workers[i], many))
	}
	for i := len(rows[0]) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != "" }) {
			for j := range rows {
				rows[j] = slices.Delete(rows[j], i, i+1)
			}
		}
	}
	for _, row := range rows {
		for i := range row {
			row[i] = cmp.Or(row[i], "-")
		}
	}
	var b strings.Builder
	_ = text.Columns(&b, "  ", 20, rows)
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// row is a line of the table; "" is what is not known.
func (v *topView) row(w *jobstate.Worker, many bool) []string {
	var host, pid, cpu, memory, gpu, gpuMemory, step, pace, beat, output string
	if many {
		host = text.Line(w.Host, 80)
	}
	if w.PID > 0 {
		pid = strconv.Itoa(w.PID)
	}
	state := text.Line(w.State, 40)
	if w.Exit != nil {
		state = cmp.Or(text.Line(w.Exit.Signal, 40), "exit "+strconv.Itoa(w.Exit.Code))
	} else if w.Usage.Processes > 0 {
		cpu, memory = fmt.Sprintf("%.0f", w.Usage.CPUPercent), text.Size(w.Usage.RSSBytes)
	}
	if w.GPU != nil {
		gpuMemory = text.Size(w.GPU.UsedBytes)
		if w.GPU.Percent != nil {
			gpu = strconv.Itoa(*w.GPU.Percent)
		}
	}
	if h := w.Heartbeat; h != nil {
		step, pace, beat = strconv.FormatInt(h.Step, 10), h.Pace(), v.since(h.Time)
	}
	if !w.LastOutput.IsZero() {
		output = v.since(w.LastOutput)
	}
	return []string{strconv.Itoa(w.Rank), host, pid, state, cpu, memory, gpu, gpuMemory, step, pace, beat, output,
		lastLine(w)}
}

// lastLine is what a worker has ended of, or what it last said.
func lastLine(w *jobstate.Worker) string {
	if w.Exit != nil && w.Exit.Cause != "" {
		return text.Line(w.Exit.Cause, 300)
	}
	for _, lines := range [][]string{w.StdoutLines, w.StderrLines} {
		for _, line := range slices.Backward(lines) {
			if line = text.Line(line, 300); line != "" {
				return line
			}
		}
	}
	return ""
}
