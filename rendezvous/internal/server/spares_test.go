package server_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSpares has the holder of a job with a spare be lost: the spare comes to the new holder first.
func TestSpares(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"a spare is quicker at a new holder than those who were in the round", `
			was spare
			back 1 3 5 3 s=2
			was member
			back 1 3 7 3 a=0 b=1
			join s a b`, `
			s: spare redundant
			s: spare
			a: round 8 rank 0/3 workers 0/6
			b: round 8 rank 1/3 workers 2/6
			s: round 8 rank 2/3 workers 4/6`},
		{"two spares are quicker than those who were in the round", `
			was spare
			back 1 3 5 3 s=2 r=1
			was member
			back 1 3 7 3 a=0 b=1
			join s r a b`, `
			s: spare redundant
			r: spare redundant
			s: spare
			a: round 8 rank 0/3 workers 0/6
			b: round 8 rank 1/3 workers 2/6
			s: round 8 rank 2/3 workers 4/6`},
		{"nobody else comes to a new holder", `
			was spare
			back 1 2 5 2 s=1
			join s
			wait 14s
			ping s
			wait 14s
			ping s
			wait 14s
			ping s
			wait 14s
			ping s
			wait 5s`, `
			s: spare redundant
			s: spare
			s: round 6 rank 0/1 workers 0/2`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(trim(tt.want), newLab(t).run(tt.script)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}
