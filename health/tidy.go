package health

import (
	"cmp"
	"math"
	"os"
	"slices"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/text"
)

// shownLines is how many of a log's last lines a State has.
const shownLines = 8

// lastTime is the last one that JSON has a form for.
var lastTime = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// tidy returns a copy of s that can be shown: bounded, in order, without numbers
// and times that JSON has no form for, and with the ends of the workers' logs.
func tidy(s *State) *State {
	t := *s
	t.Version = StateVersion
	if t.Time.IsZero() {
		t.Time = time.Now()
	}
	if t.Job.Preempted != nil {
		p := *t.Job.Preempted
		fit(&p.Time)
		t.Job.Preempted = &p
	}
	t.Hosts = first(t.Hosts, maxHosts)
	t.Failures = first(t.Failures, maxFailures)
	t.Timeline = slices.Clone(t.Timeline[max(0, len(t.Timeline)-maxTimeline):])
	for i := range t.Timeline {
		fit(&t.Timeline[i].Time)
	}
	t.Workers = slices.Clone(first(t.Workers, maxWorkers))
	slices.SortStableFunc(t.Workers, func(a, b Worker) int { return cmp.Compare(a.LocalRank, b.LocalRank) })
	for i := range t.Workers {
		w := &t.Workers[i]
		w.Usage.CPUPercent, w.Usage.CPUSeconds = finite(w.Usage.CPUPercent), finite(w.Usage.CPUSeconds)
		if h := w.Heartbeat; h != nil {
			w.Heartbeat = &Heartbeat{h.Step, h.Time, finite(h.StepsPerSecond)}
		}
		if w.LastOutput.IsZero() {
			w.LastOutput = lastWrite(w.Stdout, w.Stderr)
		}
		w.StdoutLines = orEnd(w.StdoutLines, w.Stdout)
		if w.Stderr != w.Stdout {
			w.StderrLines = orEnd(w.StderrLines, w.Stderr)
		}
	}
	return &t
}

// clean makes all texts of another host's State as safe to show as this host's are.
func (s *State) clean() {
	for i := range s.Workers {
		for _, lines := range [][]string{s.Workers[i].StdoutLines, s.Workers[i].StderrLines} {
			for k, line := range lines {
				lines[k] = text.Line(line, maxLine)
			}
		}
	}
	text.Each(s, text.Lines)
}

// addGPUs adds how busy the GPUs of this host are, by local rank, to workers that run.
func (s *State) addGPUs(gpus []agent.GPU) {
	for i := range s.Workers {
		if w := &s.Workers[i]; w.Exit == nil && w.LocalRank >= 0 && w.LocalRank < len(gpus) {
			w.GPU = &gpus[w.LocalRank]
		}
	}
}

// orEnd returns lines, or the last ones of a file where there are none.
func orEnd(lines []string, path string) []string {
	if lines == nil && path != "" {
		lines, _ = endOf(path, shownLines) // a worker may not have written any
	}
	return lines
}

// lastWrite returns when something was last written to one of the files; zero if
// they are empty or not there.
func lastWrite(paths ...string) (last time.Time) {
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

func first[T any](list []T, n int) []T { return list[:min(n, len(list))] }

func finite(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return min(max(f, -math.MaxFloat64), math.MaxFloat64)
}

// fit moves a time into the years that JSON has a form for.
func fit(t *time.Time) {
	switch {
	case t.Year() > 9999:
		*t = lastTime
	case t.Year() < 0:
		*t = time.Time{}
	}
}
