package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlanLive(t *testing.T) {
	old := func(local int, handle string, step int64) liveMember { return liveMember{local, handle, step, false} }
	fresh := func(local int, handle string) liveMember { return liveMember{local, handle, 0, true} }
	for _, tt := range []struct {
		name  string
		parts []livePart
		want  *livePlan
	}{
		{"nobody is ready", []livePart{{Starting: 2}, {Members: []liveMember{fresh(0, "a")}}}, &livePlan{Form: true, Source: -1}},
		{"all are new", []livePart{{Members: []liveMember{fresh(0, "a"), fresh(1, "b")}}, {Members: []liveMember{fresh(0, "c")}}},
			&livePlan{Handles: []string{"a", "b", "c"}, Steps: []int64{0, 0, 0}, Source: -1, Joined: []int{0, 1, 2}, Locals: [][]int{{0, 1}, {0}}}},
		{"one is lost", []livePart{{Members: []liveMember{old(1, "b", 7)}, Kept: 1, Starting: 1}, {Members: []liveMember{old(0, "c", 7)}, Kept: 1}},
			&livePlan{Handles: []string{"b", "c"}, Steps: []int64{7, 7}, Source: -1, Joined: []int{}, Locals: [][]int{{1}, {0}}}},
		{"a step apart", []livePart{{Members: []liveMember{old(0, "a", 7)}, Kept: 1}, {Members: []liveMember{old(0, "c", 8)}, Kept: 1}, {}},
			&livePlan{Handles: []string{"a", "c"}, Steps: []int64{7, 8}, Source: 1, Joined: []int{}, Locals: [][]int{{0}, {0}, nil}}},
		{"one is between two steps", []livePart{{Members: []liveMember{old(0, "a", -1), old(1, "b", 9)}, Kept: 2}},
			&livePlan{Handles: []string{"a", "b"}, Steps: []int64{-1, 9}, Source: 1, Joined: []int{}, Locals: [][]int{{0, 1}}}},
		{"all are", []livePart{{Members: []liveMember{old(0, "a", -1)}, Kept: 1}, {Members: []liveMember{fresh(0, "n")}}}, &livePlan{Torn: true, Source: -1}},
		{"one joins with rank 0", []livePart{{Members: []liveMember{fresh(0, "n"), old(1, "b", 9)}, Kept: 1}},
			&livePlan{Handles: []string{"n", "b"}, Steps: []int64{0, 9}, Source: 1, Joined: []int{0}, Locals: [][]int{{0, 1}}}},
	} {
		got := planLive(tt.parts)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
