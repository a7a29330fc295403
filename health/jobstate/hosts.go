package jobstate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/format/text"
)

// What a State has at most when it is shown: of the timeline the oldest are left out, of the rest the last.
const (
	maxTimeline   = 200
	maxHosts      = 10_000
	maxWorkers    = 1_000
	maxJobWorkers = 10_000
	maxFailures   = 100
	// maxElements bounds all lists of a State together: 1,000 workers have 16 lines each.
	maxElements = 100_000
)

// Heard is what one of the other hosts has said.
type Heard struct {
	At      time.Time // when it was asked last; zero: not yet
	State   *State    // its last; nil: none
	Problem error     // why there is no newer one
}

// Hear returns what one host has said when it was asked for its State: safe to show, and with times by
// this host's clock.
func Hear(groupRank int, answer []byte, err error) Heard {
	h := Heard{At: time.Now(), Problem: err}
	if err == nil {
		if h.State, h.Problem = Parse(answer); h.Problem == nil && h.State.Host.GroupRank != groupRank {
			h.State, h.Problem = nil, fmt.Errorf("it is not in this round (its group rank is %d)", h.State.Host.GroupRank)
		} else if h.Problem == nil {
			h.State.clean()
			by := h.At.Sub(h.State.Time)
			text.Each(h.State, func(t time.Time) time.Time {
				if !t.IsZero() {
					t = t.Add(by)
					fit(&t)
				}
				return t
			})
		}
	}
	return h
}

// Others are what the other hosts of a round have said, by group rank. The zero value is for one host alone.
type Others struct {
	Hosts []Host // of the round, where the answering host is not in it
	Heard map[int]Heard
}

// Shown returns a copy that can be shown to anybody: bounded, in order, with how busy this host's GPUs are,
// by local rank, with the ends of the workers' logs and with what other hosts have said.
func (s *State) Shown(gpus []agent.GPU, others Others) *State {
	t := s.tidy()
	t.addGPUs(gpus)
	t.with(others)
	return t
}

// with adds what other hosts have said to a State, which is the caller's alone.
func (s *State) with(o Others) {
	for i := range s.Workers {
		s.Workers[i].Host, s.Workers[i].GroupRank = s.Host.Name, s.Host.GroupRank
	}
	told := o.Hosts == nil
	if !told {
		s.Hosts = o.Hosts
	}
	s.Hosts = slices.Clone(s.Hosts)
	for _, rank := range slices.Sorted(maps.Keys(o.Heard)) {
		h := o.Heard[rank]
		if h.State != nil {
			s.add(h.State)
			if !told && h.Problem == nil {
				s.history(h.State)
				told = true
			}
		}
		if h.Problem != nil {
			s.doubt(rank)
		}
		for i := range s.Hosts {
			if at := &s.Hosts[i]; at.GroupRank != rank {
				continue
			} else if at.Problem = ""; h.Problem != nil {
				at.Problem = h.Problem.Error()
			}
		}
	}
	s.bound()
}

// add adds the workers, timers and the host of another host's State, which it does not change,
// unless they are there already. Times are taken as they are.
func (s *State) add(other *State) {
	for _, w := range other.Workers {
		if w.Host == "" {
			w.Host, w.GroupRank = other.Host.Name, other.Host.GroupRank
		}
		if s.Worker(w.Rank) == nil {
			s.Workers = append(s.Workers, w)
		}
	}
	for i := range s.Hosts {
		if h := &s.Hosts[i]; h.GroupRank == other.Host.GroupRank {
			name, state := h.Name, h.State
			*h = other.Host
			h.Name, h.State = cmp.Or(h.Name, name), cmp.Or(h.State, state)
		}
	}
	s.LiveTimers += other.LiveTimers
}

// history takes over how the job is, and what has happened to it, from a host that has workers of it.
func (s *State) history(of *State) {
	j := &of.Job
	s.Job.State, s.Job.Round, s.Job.Restarts, s.Job.WorldSize = j.State, j.Round, j.Restarts, j.WorldSize
	s.Timeline, s.Failures = of.Timeline[max(0, len(of.Timeline)-maxTimeline):], first(of.Failures, maxFailures)
}

// doubt says that nobody knows any more how a host and its workers are.
func (s *State) doubt(groupRank int) {
	for i := range s.Workers {
		if w := &s.Workers[i]; w.GroupRank == groupRank && w.Exit == nil {
			w.State, w.Usage, w.GPU = string(agent.Unknown), Usage{}, nil
		}
	}
	for i := range s.Hosts {
		if h := &s.Hosts[i]; h.GroupRank == groupRank && h.State != "" {
			h.State = string(agent.Unknown)
		}
	}
}

// bound keeps a State of many hosts small.
func (s *State) bound() {
	slices.SortStableFunc(s.Workers, func(a, b Worker) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.GroupRank, b.GroupRank))
	})
	s.Workers = first(s.Workers, maxJobWorkers)
	if len(s.Workers) <= maxWorkers {
		return
	}
	for i := range s.Workers { // the last lines of each host are at /v1/state?scope=host there, and in /v1/logs
		w := &s.Workers[i]
		w.StdoutLines, w.StderrLines = w.StdoutLines[max(0, len(w.StdoutLines)-1):], nil
	}
}

// Parse reads the JSON of a State. A list of many small entries would take a hundred times
// the memory of its text: it is counted before, and one of more than 10,000 is refused, as are
// lists of more than 100,000 together, those within others too, and a text without a version or
// with a later one than Version.
func Parse(body []byte) (*State, error) {
	var brief struct {
		Version                            int
		Workers, Hosts, Timeline, Failures []struct{}
	}
	if outer, inner := pyjson.Elements(body); outer+inner > maxElements {
		return nil, fmt.Errorf("the answer is not a state of a job: it has lists of more than %d entries in all", maxElements)
	}
	if err := json.Unmarshal(body, &brief); err != nil {
		return nil, fmt.Errorf("the answer is not a state of a job: %w", err)
	}
	switch n := max(len(brief.Workers), len(brief.Hosts), len(brief.Timeline), len(brief.Failures)); {
	case brief.Version < 1:
		return nil, errors.New("the answer is not a state of a job: it has no version")
	case brief.Version != Version:
		return nil, fmt.Errorf("the agent is another release of muster (state version %d, this one knows %d); use that "+
			"release's muster", brief.Version, Version)
	case n > maxHosts:
		return nil, fmt.Errorf("the answer is not a state of a job: it has a list of more than %d entries", maxHosts)
	}
	state := &State{}
	if err := json.Unmarshal(body, state); err != nil {
		return nil, fmt.Errorf("the answer is not a state of a job: %w", err)
	}
	return state, nil
}

// A State has the last shownLines of a log, of the last shownBytes, and maxLine characters of each.
const (
	shownLines = 8
	shownBytes = 64 << 10
	maxLine    = 400
)

// lastTime is the last one that JSON has a form for.
var lastTime = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// tidy returns a copy that can be shown: bounded, in order, without numbers
// and times that JSON has no form for, and with the ends of the workers' logs.
func (s *State) tidy() *State {
	t := *s
	t.Version = Version
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

// orEnd returns lines, or the last ones of a file where there are none, as a person would see them: without
// escape sequences and other control characters, and of a line that was written over, as progress bars do, the
// last version. Text that is not UTF-8 is shown as U+FFFD.
func orEnd(lines []string, path string) []string {
	if lines != nil || path == "" {
		return lines
	}
	end, _ := safeopen.Tail(path, shownLines, shownBytes) // a worker may not have written any
	for line := range strings.Lines(string(end)) {
		lines = append(lines, text.Line(line, maxLine))
	}
	return lines
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
