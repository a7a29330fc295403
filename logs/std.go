package logs

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Std is a set of a worker's output streams.
// Source: Std in multiprocessing/api.py.
type Std uint8

// The values of Std.
const (
	StdNone Std = 0
	StdOut  Std = 1
	StdErr  Std = 2
	StdAll  Std = StdOut | StdErr
)

// A StdSpec says which streams of which local rank something applies to. The
// zero value: none of any.
type StdSpec struct {
	all    Std
	byRank map[int]Std // nil unless given by rank
}

// maxSpecRank bounds local ranks in a specification.
const maxSpecRank = 1<<16 - 1

// ParseStd reads the value of --redirects and --tee: 0 (none), 1 (stdout), 2
// (stderr) or 3 (both) for all workers, or a list such as 0:3,1:0,10:1 by local
// rank. Of several values for one rank the last counts; ranks that are not
// listed have none.
// Source: Std.from_str, which takes ranks of one digit only.
func ParseStd(text string) (StdSpec, error) {
	if s, ok := parseStdDigit(text); ok {
		return StdSpec{all: s}, nil
	}
	spec := StdSpec{byRank: map[int]Std{}}
	for item := range strings.SplitSeq(text, ",") {
		rank, value, ok := strings.Cut(item, ":")
		s, isStd := parseStdDigit(value)
		n, err := strconv.ParseUint(rank, 10, 16)
		if !ok || !isStd || err != nil || n > maxSpecRank {
			return StdSpec{}, fmt.Errorf("%.80q does not say which output to take: want 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a list by local rank such as 0:3,1:2", text)
		}
		spec.byRank[int(n)] = s
	}
	return spec, nil
}

func parseStdDigit(text string) (Std, bool) {
	if len(text) != 1 || text[0] < '0' || text[0] > '3' {
		return 0, false
	}
	return Std(text[0] - '0'), true
}

// For returns the streams of one local rank.
func (s StdSpec) For(localRank int) Std {
	if s.byRank != nil {
		return s.byRank[localRank]
	}
	return s.all
}

// ToMap returns the streams of local ranks 0 … n-1.
// Source: to_map in multiprocessing/api.py.
func (s StdSpec) ToMap(n int) map[int]Std {
	m := make(map[int]Std, n)
	for i := range n {
		m[i] = s.For(i)
	}
	return m
}

// String returns the text that ParseStd reads.
func (s StdSpec) String() string {
	if s.byRank == nil {
		return strconv.Itoa(int(s.all))
	}
	var items []string
	for _, rank := range slices.Sorted(maps.Keys(s.byRank)) {
		items = append(items, fmt.Sprintf("%d:%d", rank, s.byRank[rank]))
	}
	return strings.Join(items, ",")
}
