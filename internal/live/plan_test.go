package live

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAgree(t *testing.T) {
	old := func(local int, handle string, step int64) Member { return Member{local, handle, step, false} }
	fresh := func(local int, handle string) Member { return Member{local, handle, 0, true} }
	for _, tt := range []struct {
		name  string
		parts []Part
		want  *Plan
	}{
		{"nobody is ready", []Part{{Starting: 2}, {Members: []Member{fresh(0, "a")}}}, &Plan{Form: true, Source: -1}},
		{"all are new", []Part{{Members: []Member{fresh(0, "a"), fresh(1, "b")}}, {Members: []Member{fresh(0, "c")}}},
			&Plan{Handles: []string{"a", "b", "c"}, Steps: []int64{0, 0, 0}, Source: 0, Joined: []int{0, 1, 2}, Locals: [][]int{{0, 1}, {0}}}},
		{"one is lost", []Part{{Members: []Member{old(1, "b", 7)}, Kept: 1, Starting: 1}, {Members: []Member{old(0, "c", 7)}, Kept: 1}},
			&Plan{Handles: []string{"b", "c"}, Steps: []int64{7, 7}, Source: -1, Joined: []int{}, Locals: [][]int{{1}, {0}}}},
		{"a step apart", []Part{{Members: []Member{old(0, "a", 7)}, Kept: 1}, {Members: []Member{old(0, "c", 8)}, Kept: 1}, {}},
			&Plan{Handles: []string{"a", "c"}, Steps: []int64{7, 8}, Source: 1, Joined: []int{}, Locals: [][]int{{0}, {0}, nil}}},
		{"one is between two steps", []Part{{Members: []Member{old(0, "a", -1), old(1, "b", 9)}, Kept: 2}},
			&Plan{Handles: []string{"a", "b"}, Steps: []int64{-1, 9}, Source: 1, Joined: []int{}, Locals: [][]int{{0, 1}}}},
		{"all are", []Part{{Members: []Member{old(0, "a", -1)}, Kept: 1}, {Members: []Member{fresh(0, "n")}}}, &Plan{Torn: true, Source: -1}},
		{"those that are left had no state yet, of two checkpoints", []Part{{Members: []Member{fresh(0, "a"), {1, "b", 50, true}}}},
			&Plan{Handles: []string{"a", "b"}, Steps: []int64{0, 50}, Source: 1, Joined: []int{0, 1}, Locals: [][]int{{0, 1}}}},
		{"one joins with rank 0", []Part{{Members: []Member{fresh(0, "n"), old(1, "b", 9)}, Kept: 1}},
			&Plan{Handles: []string{"n", "b"}, Steps: []int64{0, 9}, Source: 1, Joined: []int{0}, Locals: [][]int{{0, 1}}}},
	} {
		got := Agree(tt.parts)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
