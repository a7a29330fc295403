package server_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSize has a job that is wanted to have fewer nodes than there are, and then others.
func TestSize(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"at the start: no last call for more than are wanted", `
			wish 2 0
			hello 1 4 a b c
			join a b c`, `
			a: size 2.0
			b: size 2.0
			c: size 2.0
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			c: spare redundant`},
		{"fewer: the last ranks leave", `
			hello 1 3 a b c
			join a b c
			want 2 b
			join c
			join a
			join b`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: size 2.1
			b: size 2.1
			c: size 2.1
			a: resized  -1
			b: resized  -1
			c: resized  -1
			c: spare redundant
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"more: a spare comes in", `
			wish 1 0
			hello 1 3 a b
			join a b
			want 3 b
			want 2 b
			join a`, `
			a: size 1.0
			b: size 1.0
			a: round 0 rank 0/1 workers 0/2
			b: spare redundant
			a: size 3.1
			b: size 3.1
			b: spare
			a: nodes waiting b -1
			a: size 2.2
			b: size 2.2
			a: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"the newest leaves, whatever its rank", `
			hello 2 3 b c d
			join b c d
			gone b
			hello 2 3 a
			join a c d
			want 2 c
			join d
			join a
			join c`, `
			b: round 0 rank 0/3 workers 0/6
			c: round 0 rank 1/3 workers 2/6
			d: round 0 rank 2/3 workers 4/6
			c: node lost b 0
			d: node lost b 0
			c: nodes waiting a -1
			d: nodes waiting a -1
			a: round 1 rank 0/3 workers 0/6
			c: round 1 rank 1/3 workers 2/6
			d: round 1 rank 2/3 workers 4/6
			c: size 2.1
			d: size 2.1
			a: size 2.1
			c: resized  -1
			d: resized  -1
			a: resized  -1
			a: spare redundant
			d: round 2 rank 0/2 workers 0/4
			c: round 2 rank 1/2 workers 2/4`},
		{"a new holder hears of the wish", `
			wish 3 1
			hello 1 4 c
			wish 2 2
			back 1 4 5 3 a=0 b=1
			join a b c`, `
			c: size 3.1
			c: size 2.2
			a: size 2.2
			b: size 2.2
			a: round 6 rank 0/2 workers 0/4
			b: round 6 rank 1/2 workers 2/4
			c: spare redundant`},
		{"serials that no job comes to", `
			wish 3 9223372036854775807
			hello 1 4 a
			wish 3 -1
			hello 1 4 b
			wish 3 1073741824
			hello 1 4 c
			want 2 a
			join a b c`, `
			a: size 3.1073741824
			b: size 3.1073741824
			c: size 3.1073741824
			a: size 2.1073741824
			b: size 2.1073741824
			c: size 2.1073741824
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			c: spare redundant`},
		{"a spare is quicker at a new holder than those who were in the round", `
			wish 3 1
			was spare
			back 1 4 5 4 s=2
			was member
			back 1 4 7 3 a=0 b=1
			join s a b`, `
			s: size 3.1
			a: size 3.1
			b: size 3.1
			s: spare redundant
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
		{"a wish while they join", `
			hello 2 4 a b c
			join a b c
			want 2 c`, `
			a: size 2.1
			b: size 2.1
			c: size 2.1
			c: spare redundant
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4`},
		{"fewer, and one of those who would stay is lost", `
			hello 1 3 a b c
			join a b c
			want 2 a
			gone a
			join b c`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: size 2.1
			b: size 2.1
			c: size 2.1
			a: resized  -1
			b: resized  -1
			c: resized  -1
			b: node lost a 0
			c: node lost a 0
			c: round 1 rank 0/2 workers 0/4
			b: round 1 rank 1/2 workers 2/4`},
		{"fewer, and then as many as before", `
			hello 1 3 a b c
			join a b c
			want 2 a
			join c
			want 3 a
			join a b`, `
			a: round 0 rank 0/3 workers 0/6
			b: round 0 rank 1/3 workers 2/6
			c: round 0 rank 2/3 workers 4/6
			a: size 2.1
			b: size 2.1
			c: size 2.1
			a: resized  -1
			b: resized  -1
			c: resized  -1
			a: size 3.2
			b: size 3.2
			c: size 3.2
			a: round 1 rank 0/3 workers 0/6
			b: round 1 rank 1/3 workers 2/6
			c: round 1 rank 2/3 workers 4/6`},
		{"a wish that there are not enough for", `
			hello 1 4 a b
			join a b
			wait 14s
			ping a b
			wait 14s
			ping a b
			wait 3s
			want 3 a
			hello 1 4 c d
			join c
			join a b
			join d`, `
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			a: size 3.1
			b: size 3.1
			c: size 3.1
			d: size 3.1
			a: nodes waiting c -1
			b: nodes waiting c -1
			a: round 1 rank 0/3 workers 0/6
			b: round 1 rank 1/3 workers 2/6
			c: round 1 rank 2/3 workers 4/6
			d: spare redundant`},
		{"not so many, and not so few", `
			hello 2 3 a
			want 1 a
			want 4 a`, `
			a: size the job cannot have that many hosts
			a: size the job cannot have that many hosts`},
		{"the first --want counts", `
			wish 2 0
			hello 1 3 a
			wish 3 0
			hello 1 3 b`, `
			a: size 2.0
			b: size 2.0`},
		{"with an agent of PyTorch there is no wish", `
			wish 2 0
			hello 1 3 a b
			join a b
			torch t
			wait 2s
			want 3 a
			join a b
			torch t`, `
			a: size 2.0
			b: size 2.0
			a: round 0 rank 0/2 workers 0/4
			b: round 0 rank 1/2 workers 2/4
			a: nodes waiting addr-t -1
			b: nodes waiting addr-t -1
			a: size an agent of PyTorch takes part in the job, which knows no wish for its size; the job has all hosts that it may have
			a: round 1 rank 0/3
			b: round 1 rank 1/3`},
		{"while suspended a round needs more than half", `
			wish 1 0
			hello 1 3 a b
			join a b
			suspend on
			join a
			suspend off`, `
			a: size 1.0
			b: size 1.0
			a: round 0 rank 0/1 workers 0/2
			b: spare redundant
			a: suspended  -1
			b: spare
			a: nodes waiting b -1
			b: spare redundant
			a: round 1 rank 0/1 workers 0/2`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(trim(tt.want), newLab(t).run(tt.script)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}
