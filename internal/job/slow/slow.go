// Package slow finds the rank for which the others wait, from the times at which ranks come to the
// collectives of a group.
//
// Collectives that repeat with a period are a step of training. Of each step the rank that comes last
// counts, and how long after the second last: by so much the step would be shorter if the rank were as fast as
// the next. A rank is late in a step if it comes last by a tenth of a step, by a millisecond, and by more
// than is uncertain of the hosts' clocks. It is slow once it is late in nine of ten steps of the last
// window, of 200 steps and 60 s at least, and until it is late in fewer than half of them.
//
// Where nobody is slow, each of n ranks is the last one in a step with a chance of 1/n. In 200 steps that
// do not depend on each other, one of two ranks is last 180 times with a chance below 1e-32. But what else runs
// on a host slows a rank for a while. Let one of two ranks be slowed at all times, by turns of random
// (exponential) length, a second on average: the share of each in 60 s has a standard deviation of
// sqrt(1/4 * 2 s / 60 s) = 9 %, and 90 % is more than four of these from the half. What slows one rank in
// 54 of 60 s is not called random here: the name is right.
package slow

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Arrivals is when a rank came to the last collectives of a group, in which all ranks come together.
type Arrivals struct {
	Rank   int     `json:"rank"`
	Group  string  `json:"group"`  // the same of all its ranks, and of no other group
	Title  string  `json:"title"`  // its name for people
	Period int     `json:"period"` // collectives of a step
	First  int64   `json:"first"`  // the number of the first of them
	At     []int64 `json:"at"`     // ns since 1970
	// Error is by how much At may be wrong when it is compared with other hosts' times.
	Error time.Duration `json:"-"`
}

// Period returns how many operations make a step: after that many, the same operations follow. 1 if that is
// not known.
func Period[Op comparable](ops []Op) int {
	last := ops[max(0, len(ops)-600):]
	for p := 1; 3*p <= len(last); p++ {
		if slices.Equal(last[p:], last[:len(last)-p]) {
			return p
		}
	}
	return 1
}

// The rule.
const (
	steps      = 200
	span       = 60 * time.Second
	lateShare  = 0.9 // of the steps of a window, for a rank to be slow
	overShare  = 0.5 // for it to be no longer
	costShare  = 0.1 // of a step, for it to be late in it
	leastDelay = time.Millisecond
	maxSteps   = 20_000
)

// A Finding is a rank for which the others wait.
type Finding struct {
	Rank  int           `json:"rank"`
	Group string        `json:"group"`
	Share float64       `json:"share"` // of the steps, in which it was late
	Steps int           `json:"steps"`
	Wait  time.Duration `json:"wait_ns"` // of all others in a step, median
	Step  time.Duration `json:"step_ns"` // how long a step takes, median
}

// String is a line without the rank's host: "comes last in 97 % of the last 200 steps; …".
func (f *Finding) String() string {
	return fmt.Sprintf("comes last in %.0f %% of the last %d steps; the others wait %s of %s a step for it",
		100*f.Share, f.Steps, f.Wait.Round(time.Millisecond), f.Step.Round(time.Millisecond))
}

// A step is one in which all ranks have come.
type step struct {
	at, took, gap int64 // when the last one came, since the step before, and after the second last
	rank          int   // the last one; -1 if that is not certain
}

// A Watch sees the steps of one group. Its zero value is ready.
type Watch struct {
	next  int64 // the number of the first collective that it has not seen
	steps []step
	slow  *Finding
}

// Slow is the rank that is slow now; nil if none is.
func (w *Watch) Slow() *Finding { return w.slow }

// Add takes in the arrivals of all ranks of the group, and says which rank begins to be slow, or is no longer.
func (w *Watch) Add(ranks []Arrivals) (begins, ends *Finding) {
	if len(ranks) < 2 {
		return nil, nil
	}
	w.take(ranks)
	f := w.find()
	switch {
	case f == nil:
	case w.slow == nil && f.Share >= lateShare:
		w.slow, begins = f, f
	case w.slow != nil && f.Rank == w.slow.Rank && f.Share >= overShare:
		w.slow = f
	case w.slow != nil:
		w.slow, ends = nil, w.slow
	}
	return begins, ends
}

// take adds the steps that are new.
func (w *Watch) take(ranks []Arrivals) {
	period := int64(max(1, ranks[0].Period))
	first, end, uncertain := w.next, ranks[0].First+int64(len(ranks[0].At)), time.Duration(0)
	if restarted := end < w.next; restarted {
		*w, first = Watch{}, 0
	}
	for _, r := range ranks {
		first, end = max(first, r.First), min(end, r.First+int64(len(r.At)))
		uncertain = max(uncertain, r.Error)
	}
	for ; first+period <= end; first += period {
		s := step{rank: -1}
		for seq := first; seq < first+period; seq++ {
			rank, last, before := -1, int64(0), int64(0)
			for _, r := range ranks {
				if at := r.At[seq-r.First]; at > last {
					rank, last, before = r.Rank, at, last
				} else {
					before = max(before, at)
				}
			}
			if last-before > max(s.gap, 2*int64(uncertain)) {
				s.rank, s.gap = rank, last-before
			}
			s.at = max(s.at, last)
		}
		if n := len(w.steps); n > 0 && first == w.next {
			s.took = s.at - w.steps[n-1].at
		}
		w.steps, w.next = append(w.steps, s), first+period
	}
	old := 0
	for n := len(w.steps); n-old > steps && w.steps[n-1].at-w.steps[old+1].at >= int64(span) || n-old > maxSteps; {
		old++
	}
	w.steps = slices.Delete(w.steps, 0, old)
}

// find returns the rank that is late most often in a whole window; nil without one.
func (w *Watch) find() *Finding {
	n := len(w.steps)
	if n < steps || n < maxSteps && w.steps[n-1].at-w.steps[0].at < int64(span) {
		return nil
	}
	var took []int64
	for _, s := range w.steps {
		if s.took > 0 {
			took = append(took, s.took)
		}
	}
	f := &Finding{Rank: -1, Steps: n, Step: time.Duration(median(took))}
	least, gaps := max(int64(leastDelay), int64(costShare*float64(f.Step))), map[int][]int64{}
	for _, s := range w.steps {
		if s.rank >= 0 && s.gap >= least {
			gaps[s.rank] = append(gaps[s.rank], s.gap)
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(gaps)) {
		if len(gaps[rank]) > len(gaps[f.Rank]) {
			f.Rank = rank
		}
	}
	f.Share, f.Wait = float64(len(gaps[f.Rank]))/float64(n), time.Duration(median(gaps[f.Rank]))
	return f
}

func median(of []int64) int64 {
	if len(of) == 0 {
		return 0
	}
	slices.SortFunc(of, cmp.Compare)
	return of[len(of)/2]
}
