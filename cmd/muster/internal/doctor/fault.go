package doctor

import "slices"

// A faultKind says what is wrong between two hosts.
type faultKind uint8

const (
	nothingNew faultKind = iota // what another fault says too
	notReached
	oneWay
	bothWays
	wrongInterface
	packetsVanish
	bytesVanish
)

// A fault is what is wrong between two hosts.
type fault struct {
	kind     faultKind
	from, to int
	place    place // of to
	problem  string
}

// A group is faults that are one: of one kind, with one host on one side.
type group struct {
	kind     faultKind
	from, to []int
	place    place // of the last of to
	problem  string
}

// gather puts faults together. A host at which many end, or from which many begin, is
// more likely to be the cause than all the others, so each fault goes to the side of
// which there are most.
func gather(faults []fault) (groups []group) {
	type side struct {
		kind    faultKind
		problem string
		place   place // of to, where it has to be the same
		host    int
		end     bool // host is to
	}
	sides := func(f fault) (begin, end side) {
		begin = side{f.kind, f.problem, place{}, f.from, false}
		end = side{f.kind, f.problem, f.place, f.to, true}
		if f.kind == wrongInterface {
			begin = end // it is one host's setting
		}
		return begin, end
	}
	count := map[side]int{}
	for _, f := range faults {
		begin, end := sides(f)
		count[begin]++
		if end != begin {
			count[end]++
		}
	}
	at := map[side]int{}
	for _, f := range faults {
		begin, end := sides(f)
		if count[end] < count[begin] {
			end = begin
		}
		i, known := at[end]
		if !known {
			i = len(groups)
			at[end] = i
			groups = append(groups, group{kind: f.kind, problem: f.problem})
		}
		g := &groups[i]
		g.place = f.place
		if !slices.Contains(g.from, f.from) {
			g.from = append(g.from, f.from)
		}
		if !slices.Contains(g.to, f.to) {
			g.to = append(g.to, f.to)
		}
	}
	return groups
}
