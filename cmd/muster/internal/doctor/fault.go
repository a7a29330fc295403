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

// A fault is what is wrong between two hosts, or, with one of them -1, what several have in common.
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
func gather(faults []fault) (groups []*group) {
	sides := func(f fault) (from, to fault) {
		from, to = f, f
		from.to, from.place, to.from = -1, place{}, -1
		if f.kind == wrongInterface {
			from = to // it is one host's setting
		}
		return from, to
	}
	count := map[fault]int{}
	for _, f := range faults {
		from, to := sides(f)
		count[from]++
		count[to]++
	}
	known := map[fault]*group{}
	for _, f := range faults {
		common, to := sides(f)
		if count[to] >= count[common] {
			common = to
		}
		g := known[common]
		if g == nil {
			g = &group{kind: f.kind, problem: f.problem}
			known[common], groups = g, append(groups, g)
		}
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
