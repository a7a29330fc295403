package text

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A RankSet is ranges of ranks; nil has all.
type RankSet [][2]int

// Has reports whether a rank is in the set.
func (s RankSet) Has(rank int) bool {
	return s == nil || slices.ContainsFunc(s, func(r [2]int) bool { return r[0] <= rank && rank <= r[1] })
}

// ParseRankSet reads 3,5-7.
func ParseRankSet(text string) (set RankSet, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 31)
		b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 31)
		if errA != nil || errB != nil || a > b {
			return nil, fmt.Errorf("'%s' is not a list of ranks and ranges such as 3,5-7", Line(text, 100))
		}
		set = append(set, [2]int{int(a), int(b)})
	}
	slices.SortFunc(set, func(x, y [2]int) int { return x[0] - y[0] })
	return set, nil
}
