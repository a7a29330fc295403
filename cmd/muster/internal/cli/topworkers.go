package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

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
		if w.Heartbeat == nil {
			return "-"
		}
		return strconv.FormatInt(w.Heartbeat.Step, 10)
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
		switch c.title {
		case "HOST":
			return !v.many
		case "GPU%", "GMEM":
			return !gpus
		case "STEP", "BEAT":
			return !beats
		case "PACE":
			return !paces
		}
		return false
	})
	for {
		need := 2 // the margin
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

// workers returns the workers in order of rank.
func (v *topView) workers() []topWorker {
	var list []topWorker
	for i := range v.state.Workers {
		list = append(list, topWorker{&v.state.Workers[i], v.state.Time})
	}
	slices.SortStableFunc(list, func(a, b topWorker) int { return cmp.Compare(a.Rank, b.Rank) })
	return list
}

// table draws the heading and the first rows workers.
func (v *topView) table(workers []topWorker, rows, width int) []string {
	shown, last := v.columns(workers, width)
	heading := " "
	for _, c := range shown {
		heading += " " + fitRight(c.title, c.width)
	}
	if last >= minLast {
		heading += " LAST LINE"
	}
	if count := fmt.Sprintf(" %d/%d", rows, len(workers)); rows < len(workers) && last >= len(count) {
		heading = fit(heading, width-len(count)) + count
	}
	lines := []string{heading}
	for _, w := range workers[:rows] {
		line := " "
		for _, c := range shown {
			line += " " + fitRight(c.cell(w), c.width)
		}
		if last >= minLast {
			line += " " + lastLine(w)
		}
		lines = append(lines, line)
	}
	if len(workers) == 0 {
		lines = append(lines, "  no workers")
	}
	return lines
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
