package cli

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/tui"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/text"
)

// A topWorker is a row of the table.
type topWorker struct {
	*health.Worker
	now time.Time // by the answering host's clock, as all times
}

// A column of the table of workers. Those with the highest drop are left out first
// where there is no room.
type column struct {
	title string
	width int
	drop  int
	cell  func(w topWorker) string
}

var workerColumns = []column{
	{"RANK", 5, 0, func(w topWorker) string { return strconv.Itoa(w.Rank) }},
	{"HOST", 10, 0, func(w topWorker) string { return orDash(w.Host != "", text.Line(w.Host, 80)) }},
	{"LOCAL", 5, 6, func(w topWorker) string { return strconv.Itoa(w.LocalRank) }},
	{"PID", 8, 5, func(w topWorker) string { return orDash(w.PID > 0, strconv.Itoa(w.PID)) }},
	{"STATE", 10, 0, workerState},
	{"CPU%", 5, 1, func(w topWorker) string {
		return orDash(w.Exit == nil && w.Usage.Processes > 0, fmt.Sprintf("%.0f", w.Usage.CPUPercent))
	}},
	{"MEM", 5, 2, func(w topWorker) string {
		return orDash(w.Exit == nil && w.Usage.RSSBytes > 0, sizeOf(w.Usage.RSSBytes))
	}},
	{"GPU%", 4, 1, func(w topWorker) string {
		if w.GPU == nil || w.GPU.Percent == nil {
			return "-"
		}
		return strconv.Itoa(*w.GPU.Percent)
	}},
	{"GMEM", 4, 3, func(w topWorker) string {
		if w.GPU == nil {
			return "-"
		}
		return sizeOf(w.GPU.UsedBytes)
	}},
	{"STEP", 8, 3, func(w topWorker) string {
		return orDash(w.Heartbeat != nil, strconv.FormatInt(stepOf(w), 10))
	}},
	{"PACE", 7, 4, func(w topWorker) string { return orDash(paceOf(w) != "", paceOf(w)) }},
	{"BEAT", 6, 4, func(w topWorker) string {
		if w.Heartbeat == nil {
			return "-"
		}
		return age(w.now.Sub(w.Heartbeat.Time))
	}},
	{"OUTPUT", 6, 0, func(w topWorker) string {
		return orDash(!w.LastOutput.IsZero(), age(w.now.Sub(w.LastOutput)))
	}},
}

// minLast is how much room the last line of output needs to be worth showing.
const minLast = 12

func orDash(known bool, text string) string {
	if !known {
		return "-"
	}
	return text
}

// workerState is the state of a worker, or how it ended.
func workerState(w topWorker) string {
	switch {
	case w.Exit == nil:
		return text.Line(w.State, 40)
	case w.Exit.Signal != "":
		return text.Line(w.Exit.Signal, 40)
	}
	return "exit " + strconv.Itoa(w.Exit.Code)
}

// paceOf is how many steps a worker does in a second; "" where that is not known.
func paceOf(w topWorker) string {
	if w.Heartbeat == nil {
		return ""
	}
	return w.Heartbeat.Pace()
}

// columns are those that fit, and the room that is left for the last output.
func (v *topView) columns(workers []topWorker, width int) (shown []column, last int) {
	beats := slices.ContainsFunc(workers, func(w topWorker) bool { return w.Heartbeat != nil })
	paces := slices.ContainsFunc(workers, func(w topWorker) bool { return paceOf(w) != "" })
	gpus := slices.ContainsFunc(workers, func(w topWorker) bool { return w.GPU != nil })
	shown = slices.DeleteFunc(slices.Clone(workerColumns), func(c column) bool {
		return !gpus && (c.title == "GPU%" || c.title == "GMEM") || !beats && (c.title == "STEP" || c.title == "BEAT") || !paces && c.title == "PACE" || !v.many && c.title == "HOST"
	})
	for {
		need := 2 // the mark
		for _, c := range shown {
			need += c.width + 1
		}
		if width-need >= minLast || need <= width && len(shown) <= 3 {
			return shown, max(0, width-need)
		}
		worst := slices.MaxFunc(shown, func(a, b column) int { return a.drop - b.drop })
		if worst.drop == 0 || need <= width && worst.drop < 5 {
			return shown, max(0, width-need)
		}
		shown = slices.DeleteFunc(shown, func(c column) bool { return c.title == worst.title })
	}
}

// table draws the heading and rows workers, among them the chosen one.
func (v *topView) table(workers []topWorker, rows, width int) []tui.Line {
	shown, last := v.columns(workers, width)
	text := "  "
	for _, c := range shown {
		text += tui.FitRight(c.title, c.width) + " "
	}
	if last >= minLast {
		text += "LAST LINE"
	}
	if count := fmt.Sprintf(" %d/%d", rows, len(workers)); rows < len(workers) && last >= len(count) {
		text = tui.Fit(text, width-len(count)) + count
	}
	lines := []tui.Line{{{Text: tui.Fit(text, width), Style: tui.Reverse}}}
	first := 0
	if at := indexOf(workers, v.selected); at >= rows {
		first = at - rows + 1
	}
	for _, w := range workers[first : first+rows] {
		lines = append(lines, v.row(w, shown, last))
	}
	if len(workers) == 0 {
		lines = append(lines, tui.Line{{Text: "  no workers", Style: tui.Dim}})
	}
	return lines
}

// row draws one worker.
func (v *topView) row(w topWorker, shown []column, last int) tui.Line {
	mark, style := "  ", tui.Plain
	if w.Rank == v.selected {
		mark, style = "> ", tui.Bold
	}
	line := tui.Line{{Text: mark, Style: style}}
	for _, c := range shown {
		own := style
		if c.title == "STATE" && w.Exit != nil && w.Exit.Code != 0 {
			own = tui.Red
		}
		line = append(line, tui.Span{Text: tui.FitRight(c.cell(w), c.width) + " ", Style: own})
	}
	if last >= minLast {
		line = append(line, tui.Span{Text: tui.Cut(lastLine(w), last), Style: style})
	}
	return line
}

// lastLine is what a worker has ended of, or what it last said.
func lastLine(w topWorker) string {
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
