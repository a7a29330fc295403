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

// A side is what the faults of a group have in common.
type side struct {
	kind    faultKind
	problem string
	place   place // if to is the host
	host    int
	isTo    bool
}

// gather puts faults together. A host at which many end, or from which many begin, is
// more likely to be the cause than all the others, so each fault goes to the side of
// which there are most.
func gather(faults []fault) (groups []group) {
	sides := func(f fault) (from, to side) {
		from, to = side{f.kind, f.problem, place{}, f.from, false}, side{f.kind, f.problem, f.place, f.to, true}
		if f.kind == wrongInterface {
			from = to // it is one host's setting
		}
		return from, to
	}
	count := map[side]int{}
	for _, f := range faults {
		from, to := sides(f)
		count[from]++
		count[to]++
	}
	index := map[side]int{}
	for _, f := range faults {
		common, to := sides(f)
		if count[to] >= count[common] {
			common = to
		}
		i, known := index[common]
		if !known {
			i = len(groups)
			index[common] = i
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
