package live

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

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

// A plan comes from another host, perhaps of another version: it is taken only if it is about as many nodes and workers
// as it says.
func TestPlanIsChecked(t *testing.T) {
	whole := func() *Plan {
		return &Plan{Handles: []string{"a", "b"}, Steps: []int64{7, 7}, Locals: [][]int{nil, {0, 1}}}
	}
	if p := whole(); p.Check(2) != nil || p.Leader() != 1 {
		t.Errorf("%v; the leader is node %d", p.Check(2), p.Leader())
	}
	for what, spoil := range map[string]func(p *Plan){
		"a node too few":      func(p *Plan) { p.Locals = p.Locals[1:] },
		"a worker too few":    func(p *Plan) { p.Locals[1] = []int{0} },
		"a worker too many":   func(p *Plan) { p.Locals[0] = []int{0} },
		"a step too few":      func(p *Plan) { p.Steps = p.Steps[1:] },
		"no members":          func(p *Plan) { *p = Plan{Locals: [][]int{nil, nil}} },
		"workers still start": func(p *Plan) { p.Form = true },
	} {
		p := whole()
		spoil(p)
		if err := p.Check(2); err == nil || !strings.Contains(err.Error(), "run the same version of muster on all hosts") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := (&Plan{Inconsistent: true, Why: "two sizes"}).Check(2); err == nil || err.Error() != "two sizes" {
		t.Errorf("no plan: %v", err)
	}
	if nobody := (&Plan{Locals: [][]int{nil, {}}}).Leader(); nobody != -1 {
		t.Errorf("node %d leads nobody", nobody)
	}
}
