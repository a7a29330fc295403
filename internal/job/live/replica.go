package live

import "slices"

// A seat is a member, on a node.
type seat struct {
	node int
	Member
}

// replicaGroups puts members into groups of size, with one for each place: who has been at a
// place has its shard, and stays there. A group that is whole stays, too. Of the others as many
// are made as can be. It returns the groups as indices of members, and how many more members
// it takes to make another one.
func replicaGroups(size int, members []seat) (groups [][]int, lacks int) {
	if size == 1 {
		for i := range members {
			groups = append(groups, []int{i})
		}
		return groups, 1
	}
	if size > len(members) {
		return nil, size - len(members)
	}
	type group struct {
		of      int64
		replica int
	}
	last := map[group][]int{}
	for i, m := range members {
		if m.Replica > 0 {
			last[group{m.Of, m.Replica}] = append(last[group{m.Of, m.Replica}], i)
		}
	}
	var rest, behind []int // those that waited come second
	for i, m := range members {
		switch were := last[group{m.Of, m.Replica}]; {
		case m.Replica == 0:
			behind = append(behind, i)
		case len(were) < size:
			rest = append(rest, i)
		case were[0] == i:
			group := slices.Clone(were)
			slices.SortFunc(group, func(a, b int) int { return members[a].Place - members[b].Place })
			groups = append(groups, group)
		}
	}
	for rest = append(rest, behind...); ; {
		group := replicaGroup(size, members, rest)
		if lacks = size - len(group); lacks > 0 {
			break
		}
		rest = slices.DeleteFunc(rest, func(i int) bool { return slices.Contains(group, i) })
		groups = append(groups, group)
	}
	slices.SortFunc(groups, slices.Compare)
	return groups, lacks
}

// replicaGroup takes one group from rest, if possible of one node. It is short if not all places
// can be taken.
func replicaGroup(size int, members []seat, rest []int) []int {
	var group []int
	for place := 1; place <= size; place++ {
		best, badness := -1, 0
		for _, i := range rest {
			bad := 1
			switch m := members[i]; {
			case slices.Contains(group, i) || m.Place > 0 && m.Place != place:
				continue
			case m.Place == 0:
				bad += 2 // it can take any place
			}
			if len(group) > 0 && members[group[0]].node != members[i].node {
				bad++
			}
			if best < 0 || bad < badness {
				best, badness = i, bad
			}
		}
		if best >= 0 {
			group = append(group, best)
		}
	}
	return group
}

// common is the last point that the members of a plan can continue from: for each place there is one
// that is there; none if there is no such. New ones count if there are no others.
func common(size int, members []seat, groups [][]int, kept bool) point {
	type shard struct {
		at    point
		place int
	}
	have, places := map[shard]bool{}, map[point]int{} // by point, how many places are there
	last := point{step: -1}
	for _, group := range groups {
		for place, i := range group {
			m := &members[i]
			if of := (shard{m.at(), place}); m.Step >= 0 && (!kept || m.Lineage > 0) && !have[of] {
				have[of] = true
				if places[of.at]++; places[of.at] == size && of.at.after(last) {
					last = of.at
				}
			}
		}
	}
	return last
}

// completed has those members of a plan that can complete their step do so, if all are at the same
// point then, and returns that; none if they are not. The state of those is not ready to be
// sent, so nobody may need one.
func completed(members []seat, groups [][]int) point {
	last := point{step: -1}
	ranks := slices.Concat(groups...)
	for _, i := range ranks {
		if at := members[i].at(); at.after(last) {
			last = at
		}
	}
	for _, i := range ranks {
		if m := &members[i]; m.at() != last && (m.Next == 0 || point{m.Next, m.Step + 1} != last) {
			return point{step: -1}
		}
	}
	for _, i := range ranks {
		members[i].Lineage, members[i].Step = last.lineage, last.step
	}
	return last
}
