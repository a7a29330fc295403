// Package slow finds the rank for which the others wait, from the times at which ranks come to the
// collectives of a group.
//
// Collectives that repeat with a period are a step of training. In each step the others wait for the rank
// that comes last, from when the second last has come: by so much the step would be shorter if the rank were as fast
// as the next. What is uncertain of the hosts' clocks counts as no wait.
//
// The last 200 steps, or those of the last 60 s if that is more, are cut into 20 blocks. What counts of a rank is its
// excess: the part of a block in which the others wait for it, less that for the worst of the others. A rank
// begins to be slow if its mean excess is a tenth of the time, a millisecond a step, and eight standard errors, by
// the spread of the blocks. It is slow until its excess in the last five blocks is below a twentieth.
//
// Where nobody is slow, the excess of each rank has a mean of zero or less. Blocks of 3 s hardly depend on each other
// if what slows ranks by chance changes every second or so. Then eight standard errors, of 20 blocks, are
// exceeded with a chance of 1e-7 (Student's t with 19 degrees of freedom). Load that comes and goes makes
// the spread large, and so the bar high; a rank that is late all the time has little spread. What slows
// one rank alone for most of a minute is not called chance here.
//
// Two ranks that are equally slow are not found, as neither makes the other wait.
package slow

import (
	"fmt"
	"maps"
	"math"
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

// Period returns how many operations make a step: after that many, the same follow, in the last three steps
// and a quarter of the operations at least. from is the first after such a step. 1 and 0 if there is no such number.
func Period[Op comparable](ops []Op) (p, from int) {
	for p := 1; 3*p <= min(len(ops), 600); p++ {
		same := len(ops)
		for same > p && ops[same-1] == ops[same-1-p] {
			same--
		}
		if alike := len(ops) - same; alike >= 2*p && alike >= min(len(ops), 600)/4 {
			return p, same
		}
	}
	return 1, 0
}

// The rule.
const (
	steps     = 200
	span      = 60 * time.Second
	maxSteps  = 20_000
	blocks    = 20
	recent    = 5   // blocks that tell whether a rank is still slow
	costShare = 0.1 // of the time, for a rank to be slow
	leastWait = float64(time.Millisecond)
	errors    = 8 // standard errors
)

// A Finding is a rank for which the others wait.
type Finding struct {
	Rank  int           `json:"rank"`
	Host  string        `json:"host,omitempty"` // for the caller to set: where the rank runs
	Group string        `json:"group"`          // its title
	Share float64       `json:"share"`          // of the steps, in which it came last
	Steps int           `json:"steps"`
	Wait  time.Duration `json:"wait_ns"` // of all others in a step, mean
	Step  time.Duration `json:"step_ns"` // how long a step takes, mean

	mean, sigmas, recent float64 // its excess: the mean, in standard errors, and the mean of the last blocks
}

// Who names the rank: "rank 3 on host1".
func (f *Finding) Who() string { return fmt.Sprintf("rank %d on %s", f.Rank, f.Host) }

// String says in what it comes last: "97 % of the last 200 steps; …".
func (f *Finding) String() string {
	return fmt.Sprintf("%.0f %% of the last %d steps; the others wait %d ms of %d ms a step for it",
		100*f.Share, f.Steps, f.Wait.Milliseconds(), f.Step.Milliseconds())
}

// A step is one in which all ranks have come.
type step struct {
	// When the last one came; how long after the step before, if that was seen; and after the second last.
	at, took, gap int64
	rank          int // the last one; -1 if that is not certain
}

// A Watch sees the steps of one group. Its zero value is ready.
type Watch struct {
	next  int64 // the number of the first collective that it has not seen
	steps []step
	slow  *Finding
}

// Slow is the rank that is slow now; nil if none is.
func (w *Watch) Slow() *Finding { return w.slow }

// Add takes in the arrivals of all ranks of the group.
func (w *Watch) Add(ranks []Arrivals) {
	// Other agents say what they like.
	bad := func(r Arrivals) bool { return r.First < 0 || r.First > 1<<60 || r.Period < 0 || r.Period > maxSteps }
	if len(ranks) < 2 || slices.ContainsFunc(ranks, bad) {
		return
	}
	w.take(ranks)
	f := w.find(ranks[0].Title)
	switch {
	case f == nil:
	case w.slow == nil && f.mean >= costShare && float64(f.Wait) >= leastWait && f.sigmas >= errors:
		w.slow = f
	case w.slow != nil && f.Rank == w.slow.Rank && f.recent >= costShare/2:
		w.slow = f
	case w.slow != nil:
		w.slow = nil
	}
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

// find returns the rank with the largest excess in a whole window; nil without one.
func (w *Watch) find(group string) *Finding {
	n := len(w.steps)
	if n < steps || n < maxSteps && w.steps[n-1].at-w.steps[0].at < int64(span) {
		return nil
	}
	known, took := 0.0, 0.0
	for _, s := range w.steps {
		if s.took > 0 {
			known, took = known+1, took+float64(s.took)
		}
	}
	took /= max(1, known)
	part, last, all := [blocks]map[int]float64{}, map[int]int{}, map[int]float64{} // of a block's time, by rank
	for i := range part {
		part[i] = map[int]float64{}
		block := w.steps[i*n/blocks : (i+1)*n/blocks]
		for _, s := range block {
			if s.rank >= 0 {
				last[s.rank]++
				part[i][s.rank] += float64(s.gap) / took / float64(len(block))
				all[s.rank] += float64(s.gap) / float64(n)
			}
		}
	}
	f := &Finding{Rank: -1, Group: group, Steps: n, Step: time.Duration(took)}
	for _, rank := range slices.Sorted(maps.Keys(all)) {
		if all[rank] > all[f.Rank] {
			f.Rank = rank
		}
	}
	f.Share, f.Wait = float64(last[f.Rank])/float64(n), time.Duration(all[f.Rank])
	sum, squares := 0.0, 0.0
	for i := range part {
		other := 0.0
		for rank, p := range part[i] {
			if rank != f.Rank {
				other = max(other, p)
			}
		}
		excess := part[i][f.Rank] - other
		sum, squares = sum+excess, squares+excess*excess
		if i >= blocks-recent {
			f.recent += excess / recent
		}
	}
	f.mean = sum / blocks
	f.sigmas = f.mean / math.Sqrt(max(squares/blocks-f.mean*f.mean, 1e-12)/(blocks-1))
	return f
}
