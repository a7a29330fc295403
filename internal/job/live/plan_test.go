package live

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAgree(t *testing.T) {
	const now, before = 2, 1 // lineages
	old := func(local int, handle string, step int64) Member {
		return Member{local, handle, step, now, 0, 0, 0, 0}
	}
	fresh := func(local int, handle string) Member { return Member{local, handle, 0, 0, 0, 0, 0, 0} }
	in := func(local int, handle string, step int64, place, replica int) Member {
		return Member{local, handle, step, now, 0, place, replica, 0}
	}
	back := func(local int, handle string, step int64, place int) Member { // it has waited
		return Member{local, handle, step, before, 0, place, 0, 0}
	}
	since := func(uuid int64, m Member) Member {
		m.Of = uuid
		return m
	}
	lineage := func(lineage int64, m Member) Member {
		m.Lineage = lineage
		return m
	}
	next := func(uuid int64, m Member) Member { // it is in the barrier before the optimizers
		m.Next = uuid
		return m
	}
	of := func(size int, members ...Member) Part { return Part{Members: members, Size: size} }
	for _, tt := range []struct {
		name  string
		parts []Part
		want  *Plan
	}{
		{"nobody is ready", []Part{{Starting: 2}, {Members: []Member{fresh(0, "a")}}}, &Plan{Form: true, Source: -1}},
		{"all are new", []Part{{Members: []Member{fresh(0, "a"), fresh(1, "b")}}, {Members: []Member{fresh(0, "c")}}},
			&Plan{Lacks: 1, Handles: []string{"a", "b", "c"}, Steps: []int64{0, 0, 0}, Source: 0, Joined: []int{0, 1, 2}, Locals: [][]int{{0, 1}, {0}}}},
		{"one is lost", []Part{{Members: []Member{old(1, "b", 7)}, Starting: 1}, {Members: []Member{old(0, "c", 7)}}},
			&Plan{Lacks: 1, Handles: []string{"b", "c"}, Steps: []int64{7, 7}, Lineage: now, Source: -1, Joined: []int{}, Locals: [][]int{{1}, {0}}}},
		{"a step apart", []Part{{Members: []Member{old(0, "a", 7)}}, {Members: []Member{old(0, "c", 8)}}, {}},
			&Plan{Lacks: 1, Handles: []string{"a", "c"}, Steps: []int64{7, 8}, Lineage: now, Source: 1, Joined: []int{}, Locals: [][]int{{0}, {0}, nil}}},
		{"one is between two steps", []Part{{Members: []Member{old(0, "a", -1), old(1, "b", 9)}}},
			&Plan{Lacks: 1, Handles: []string{"a", "b"}, Steps: []int64{-1, 9}, Lineage: now, Source: 1, Joined: []int{}, Locals: [][]int{{0, 1}}}},
		{"all are", []Part{{Members: []Member{old(0, "a", -1)}}, {Members: []Member{fresh(0, "n")}}}, &Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"those that are left had no state yet, of two checkpoints", []Part{{Members: []Member{fresh(0, "a"), {1, "b", 50, 0, 0, 0, 0, 0}}}},
			&Plan{Lacks: 1, Handles: []string{"a", "b"}, Steps: []int64{0, 50}, Source: 1, Joined: []int{0, 1}, Locals: [][]int{{0, 1}}}},
		{"one joins with rank 0", []Part{{Members: []Member{fresh(0, "n"), old(1, "b", 9)}}},
			&Plan{Lacks: 1, Handles: []string{"n", "b"}, Steps: []int64{0, 9}, Lineage: now, Source: 1, Joined: []int{0}, Locals: [][]int{{0, 1}}}},
		{"a replica group is lost", []Part{of(2, in(0, "a", 7, 1, 1), in(1, "b", 7, 2, 1)), of(2, in(0, "c", 7, 1, 2))},
			&Plan{Handles: []string{"a", "b"}, Steps: []int64{7, 7}, Lineage: now, Source: -1, Joined: []int{}, Locals: [][]int{{0, 1}, nil}, Groups: [][]int{{0, 1}}, Lacks: 1}},
		{"it is whole again", []Part{of(2, in(0, "a", 7, 1, 1), in(1, "b", 7, 2, 1)), of(2, back(0, "c", 5, 1), fresh(1, "n"))},
			&Plan{Handles: []string{"a", "b", "c", "n"}, Steps: []int64{7, 7, 5, 0}, Lineage: now, Source: 0, Joined: []int{2, 3}, Locals: [][]int{{0, 1}, {0, 1}},
				Groups: [][]int{{0, 1}, {2, 3}}, Lacks: 2}},
		{"two that are left make one", []Part{of(2, in(1, "b", 7, 2, 1)), of(2, in(0, "c", 7, 1, 2))},
			&Plan{Handles: []string{"b", "c"}, Steps: []int64{7, 7}, Lineage: now, Source: -1, Joined: []int{}, Locals: [][]int{{1}, {0}}, Groups: [][]int{{1, 0}}, Lacks: 2}},
		{"a host comes back that was cut off when others had these numbers", []Part{of(2, since(2, in(0, "a", 9, 1, 1)), since(2, in(1, "b", 9, 2, 1))), of(2, in(0, "c", 7, 2, 1), in(1, "d", 7, 1, 1))},
			&Plan{Handles: []string{"a", "b", "c", "d"}, Steps: []int64{9, 9, 7, 7}, Lineage: now, Source: 0, Joined: []int{}, Locals: [][]int{{0, 1}, {0, 1}},
				Groups: [][]int{{0, 1}, {3, 2}}, Lacks: 2}},
		{"one has completed a step more, and goes back", []Part{of(2, in(0, "a", 8, 1, 1), in(1, "b", 7, 2, 1)), of(2, in(0, "c", 7, 1, 2), in(1, "d", 7, 2, 2))},
			&Plan{Handles: []string{"a", "b", "c", "d"}, Steps: []int64{8, 7, 7, 7}, Lineage: now, Source: 1, Joined: []int{}, Locals: [][]int{{0, 1}, {0, 1}},
				Groups: [][]int{{0, 1}, {2, 3}}, Lacks: 2}},
		{"it cannot", []Part{of(2, in(0, "a", 8, 1, 1), in(1, "b", 7, 2, 1))},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"a shard is gone", []Part{of(2, in(0, "a", 7, 1, 1), fresh(1, "n"))},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"who is in the barrier completes the step", []Part{of(2, in(0, "a", 8, 1, 1), next(now, in(1, "b", 7, 2, 1))), of(2, back(0, "c", 8, 1))},
			&Plan{Handles: []string{"a", "b"}, Steps: []int64{8, 8}, Lineage: now, Source: -1, Joined: []int{}, Locals: [][]int{{0, 1}, nil}, Groups: [][]int{{0, 1}}, Lacks: 1}},
		{"or repeats it", []Part{of(2, next(now, in(0, "a", 7, 1, 1)), next(now, in(1, "b", 7, 2, 1)))},
			&Plan{Handles: []string{"a", "b"}, Steps: []int64{7, 7}, Lineage: now, Source: -1, Joined: []int{}, Locals: [][]int{{0, 1}}, Groups: [][]int{{0, 1}}, Lacks: 2}},
		{"who joins cannot have the state of one who completes it", []Part{of(2, in(0, "a", 8, 1, 1), next(now, in(1, "b", 7, 2, 1))), of(2, back(0, "c", 8, 1), fresh(1, "n"))},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"who is before the barrier cannot complete it", []Part{of(2, in(0, "a", 8, 1, 1), in(1, "b", 7, 2, 1))},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"so that no group is left", []Part{of(2, in(0, "a", 7, 1, 1)), of(2, in(0, "c", 7, 1, 2))},
			&Plan{Inconsistent: true, Why: "the 2 workers that are left do not make a replica group of 2, each with another shard", Source: -1}},
		{"only those are left that waited", []Part{of(2, back(0, "a", 5, 1), fresh(1, "n"))},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"one is left over at the start", []Part{of(2, fresh(0, "a"), fresh(1, "b")), of(2, fresh(0, "c"))},
			&Plan{Handles: []string{"a", "b"}, Steps: []int64{0, 0}, Source: 0, Joined: []int{0, 1}, Locals: [][]int{{0, 1}, nil}, Groups: [][]int{{0, 1}}, Lacks: 1}},
		{"one comes back that has completed the step which the others have repeated", []Part{of(1, lineage(before, old(0, "a", 7))), of(1, old(0, "b", 7)), of(1, old(0, "c", 7))},
			&Plan{Lacks: 1, Handles: []string{"a", "b", "c"}, Steps: []int64{7, 7, 7}, Lineage: now, Source: 1, Joined: []int{0}, Locals: [][]int{{0}, {0}, {0}}}},
		{"or are about to", []Part{of(1, lineage(before, old(0, "a", 8))), of(1, old(0, "b", 7))},
			&Plan{Lacks: 1, Handles: []string{"a", "b"}, Steps: []int64{8, 7}, Lineage: now, Source: 1, Joined: []int{0}, Locals: [][]int{{0}, {0}}}},
		{"only it has the state of a whole step", []Part{of(1, lineage(before, old(0, "a", 5))), of(1, old(0, "b", -1))},
			&Plan{Lacks: 1, Handles: []string{"a", "b"}, Steps: []int64{5, -1}, Lineage: before, Source: 0, Joined: []int{1}, Locals: [][]int{{0}, {0}}}},
		{"one does not know its lineage", []Part{of(1, lineage(0, old(0, "a", 7))), of(1, old(0, "b", 7))},
			&Plan{Lacks: 1, Handles: []string{"a", "b"}, Steps: []int64{7, 7}, Lineage: now, Source: 1, Joined: []int{0}, Locals: [][]int{{0}, {0}}}},
		{"none does", []Part{of(1, lineage(0, old(0, "a", 7))), of(1, lineage(0, old(0, "b", 7)))},
			&Plan{Lacks: 1, Handles: []string{"a", "b"}, Steps: []int64{7, 7}, Source: 0, Joined: []int{0, 1}, Locals: [][]int{{0}, {0}}}},
		{"one has completed the first step of a membership, and goes back", []Part{of(2, in(0, "a", 8, 1, 1), lineage(before, in(1, "b", 7, 2, 1))), of(2, lineage(before, in(0, "c", 7, 1, 2)), lineage(before, in(1, "d", 7, 2, 2)))},
			&Plan{Handles: []string{"a", "b", "c", "d"}, Steps: []int64{8, 7, 7, 7}, Lineage: before, Source: 1, Joined: []int{0}, Locals: [][]int{{0, 1}, {0, 1}},
				Groups: [][]int{{0, 1}, {2, 3}}, Lacks: 2}},
		{"shards of equal steps are of different lineages", []Part{of(2, in(0, "a", 7, 1, 1)), of(2, lineage(before, in(0, "c", 7, 2, 1)))},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"who is in the barrier of another membership cannot complete the step", []Part{of(2, in(0, "a", 8, 1, 1), next(now+1, in(1, "b", 7, 2, 1)))},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"shards of two checkpoints, a step apart", []Part{of(2, fresh(0, "a"), Member{1, "b", 1, 0, 0, 0, 0, 0})},
			&Plan{Inconsistent: true, Why: "no worker that is left has the state after a whole step, or none has some shard of it", Source: -1}},
		{"two sizes", []Part{of(2, fresh(0, "a"), fresh(1, "b")), of(1, fresh(0, "c"))},
			&Plan{Inconsistent: true, Why: "workers have passed different values of replica_size to muster.live.join, which must be equal on all ranks", Source: -1}},
		{"two sizes on one host", []Part{of(-1, fresh(0, "a"), fresh(1, "b"))}, &Plan{Inconsistent: true, Why: "workers have passed different values of replica_size to muster.live.join, which must be equal on all ranks", Source: -1}},
	} {
		got := Agree(tt.parts)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Whatever is left, there are as many replica groups as can be, each with one member for each
// place; nobody changes the place, and a group that is whole stays.
func TestReplicaGroups(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 16))
		size := 2 + random.IntN(3)
		var members []seat
		at, free := make([]int, size), 0
		for i := range random.IntN(20) {
			m := seat{random.IntN(4), Member{LocalRank: i}}
			switch random.IntN(5) {
			case 0:
				free++
			case 1: // it waits
				m.Place = 1 + random.IntN(size)
				at[m.Place-1]++
			default:
				m.Lineage, m.Place, m.Replica = 1, 1+(i+i/size)%size, 1+i/size
				at[m.Place-1]++
			}
			members = append(members, m)
		}
		most := 0
		for need := 0; need <= free; most++ {
			need = 0
			for _, n := range at {
				need += max(most+1-n, 0)
			}
		}
		most-- // for which there are not enough
		before := map[int]int{}
		for _, m := range members {
			if m.Replica > 0 {
				before[m.Replica]++
			}
		}
		groups, lacks := replicaGroups(size, members)
		if len(groups) != most || lacks < 1 || lacks > size {
			t.Fatalf("seed %d: %d groups and %d lacking, want %d groups of %+v", seed, len(groups), lacks, most, members)
		}
		taken := slices.Sorted(slices.Values(slices.Concat(groups...)))
		if len(slices.Compact(taken)) != most*size {
			t.Fatalf("seed %d: %v are not groups of different members", seed, groups)
		}
		for _, group := range groups {
			for place, i := range group {
				m := members[i]
				if m.Place > 0 && m.Place != place+1 {
					t.Fatalf("seed %d: %+v is at place %d", seed, m, place)
				}
				if m.Replica > 0 && before[m.Replica] == size && members[group[0]].Replica != m.Replica {
					t.Fatalf("seed %d: %v takes the whole group %d apart", seed, groups, m.Replica)
				}
			}
		}
	}
}

// What workers say of their groups and steps, however absurd, takes no time.
func TestAgreeOnAbsurdParts(t *testing.T) {
	absurd := Part{Size: 1 << 40, Members: []Member{{Handle: "a", Step: 1}, {Handle: "b", Step: 1}}}
	if p := Agree([]Part{absurd}); !p.Inconsistent {
		t.Errorf("groups of 2^40: %+v", p)
	}
	many := Part{}
	for i := range 100_000 {
		many.Members = append(many.Members, Member{LocalRank: i, Handle: "h", Step: int64(i), Lineage: int64(i % 7)})
	}
	if p := Agree([]Part{many}); p.Inconsistent || p.Source != 99_994 {
		t.Errorf("the source is %d: %s", p.Source, p.Why)
	}
}
