package flight

import (
	"fmt"
	"slices"
	"time"
)

// A rank is late if it comes last to most of a group's last operations, each time by enough to matter.
const (
	lateWindow = 200 // operations
	lateLeast  = 20
	lateMedian = 5 * time.Millisecond
	latePart   = 10 // of the time between operations: a tenth
)

// lateness is the rank that costs a group most by coming last.
type lateness struct {
	group      *group
	rank       int
	times, of  int
	gap, apart time.Duration // medians: from the last but one, and between operations
	cost       time.Duration
}

// add looks at the last operations of a group to which all have come.
func (l *lateness) add(c *comparison, g *group) {
	if len(g.members) < 2 {
		return
	}
	gaps := map[int][]time.Duration{}
	var between []time.Duration
	n, previous := 0, int64(0)
	for _, r := range g.rows[max(0, len(g.rows)-lateWindow):] {
		if len(r.calls) < len(g.members) {
			continue
		}
		rank, last, before := 0, int64(0), int64(0)
		for _, at := range r.calls {
			switch came := c.entry(at).Created - int64(c.dumps[at.dump].Ahead); {
			case came > last:
				rank, last, before = c.rank(at), came, last
			case came > before:
				before = came
			}
		}
		if n++; n > 1 {
			between = append(between, time.Duration(last-previous))
		}
		gaps[rank], previous = append(gaps[rank], time.Duration(last-before)), last
	}
	for rank, all := range gaps {
		gap, apart := median(all), median(between)
		if n < lateLeast || 3*len(all) < 2*n || gap < lateMedian || gap < apart/latePart {
			continue
		}
		if cost := gap * time.Duration(len(all)*(len(g.members)-1)); cost > l.cost {
			*l = lateness{g, rank, len(all), n, gap, apart, cost}
		}
	}
}

func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)/2]
}

func (l *lateness) verdict(c *comparison) Verdict {
	if l.group == nil {
		return Verdict{}
	}
	return Verdict{Kind: Late, Ranks: []int{l.rank}, Text: fmt.Sprintf("%s last in %d of the last %d operations of %s, which are %s apart: by %s",
		c.who([]int{l.rank}, "comes", ""), l.times, l.of, c.title(l.group), l.apart.Round(time.Millisecond), l.gap.Round(time.Millisecond))}
}
