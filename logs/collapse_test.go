//go:build linux

package logs_test

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-run/muster/logs"
)

// What the console gets, taken apart by rank, is what each rank has written.
func TestCollapseLosesNothing(t *testing.T) {
	const ranks = 70 // more than a word's bits
	rng := rand.New(rand.NewPCG(1, 2))
	j := newJob(t, logs.Config{Tee: logs.StdSpec{All: logs.StdOut}, Collapse: true, LinePrefixTemplate: "[${local_rank}|${rank}|${role_name}]"})
	a, out := j.begin(ranks)
	want := make([][]string, ranks)
	total := 0
	for range 200 {
		for r := range ranks {
			var b strings.Builder
			for range rng.IntN(4) {
				line := "line " + strconv.Itoa(rng.IntN(5))
				want[r] = append(want[r], line)
				b.WriteString(line + "\n")
				total++
			}
			if _, err := out[r].out.WriteString(b.String()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, e := range out {
		e.close()
	}
	if stats := finish(t, a); stats.LostBytes != 0 {
		t.Errorf("got %+v", stats)
	}
	got := make([][]string, ranks)
	text := strings.TrimSuffix(content(t, j.stdout), "\n")
	prefix := regexp.MustCompile(`^\[([0-9,-]+)\|([0-9,-]+)\|[a-z]+\](.*)$`)
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		m := prefix.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("torn line %q", line)
		}
		for i, r := range numbers(t, m[1]) {
			if rank := numbers(t, m[2]); rank[i] != 10+r {
				t.Fatalf("line %q: rank %d of local rank %d", line, rank[i], r)
			}
			got[r] = append(got[r], m[3])
		}
	}
	for r := range ranks {
		if !slices.Equal(got[r], want[r]) {
			t.Errorf("rank %d: %d lines, want %d, or in another order", r, len(got[r]), len(want[r]))
		}
	}
	if len(lines) > total/2 {
		t.Errorf("%d lines became %d", total, len(lines))
	}
}

// numbers reads "0-2,5".
func numbers(t *testing.T, text string) (all []int) {
	t.Helper()
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		i, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || isRange && i >= last {
			t.Fatalf("range %q", part)
		}
		for ; i <= last; i++ {
			all = append(all, i)
		}
	}
	return all
}
