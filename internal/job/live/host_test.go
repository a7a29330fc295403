package live

import "testing"

// A worker knows only of lineages of memberships that it was told of.
func TestKnows(t *testing.T) {
	was, never := &Worker{Heard: true, of: 17}, &Worker{Heard: true}
	for _, tt := range []struct {
		said  Said
		knows bool
	}{{Said{Lineage: 17}, true}, {Said{Lineage: 18}, false}, {Said{Lineage: -1}, false}, {Said{Next: 17}, true}, {Said{Next: 18}, false}, {Said{Next: -1}, false}} {
		if was.Knows(&tt.said) != tt.knows || never.Knows(&tt.said) {
			t.Errorf("%+v of one that was a member in 17 once, and of one that never was: %v, %v", tt.said, was.Knows(&tt.said), never.Knows(&tt.said))
		}
	}
}
