package slow_test

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/job/slow"
)

// A job is a simulated one. Its ranks compute, come to the collectives of a step, and leave them together.
type job struct {
	rng    *rand.Rand
	ranks  int
	period int           // collectives of a step, one right after the other
	step   time.Duration // that a rank computes
	noise  float64       // of the logarithm of it
	load   func(rank int, now time.Duration) float64
	now    time.Duration
	first  int64
}

// arrivals plays steps and returns those of the last ones.
func (j *job) arrivals(n int) []slow.Arrivals {
	all := make([]slow.Arrivals, j.ranks)
	for range n {
		came := make([]time.Duration, j.ranks)
		for op := range j.period {
			last := j.now
			for rank := range came {
				took := time.Duration(20e3 * math.Exp(j.rng.NormFloat64()))
				if op == 0 {
					took = time.Duration(float64(j.step) * math.Exp(j.noise*j.rng.NormFloat64()) * j.load(rank, j.now))
				}
				came[rank] = j.now + took
				last = max(last, came[rank])
				all[rank].At = append(all[rank].At, 1e18+int64(came[rank]))
			}
			j.now = last + 50*time.Microsecond
		}
	}
	for rank := range all {
		all[rank].Rank, all[rank].Period, all[rank].First, all[rank].Group = rank, j.period, j.first, "dp"
	}
	j.first += int64(n * j.period)
	return all
}

// look says which rank begins to be slow, or is no longer, with new arrivals.
func look(w *slow.Watch, ranks []slow.Arrivals) (begins, ends *slow.Finding) {
	before := w.Slow()
	w.Add(ranks)
	switch now := w.Slow(); {
	case before == nil:
		return now, nil
	case now == nil:
		return nil, before
	}
	return nil, nil
}

func even(int, time.Duration) float64 { return 1 }

// telegraph is load that makes one of the ranks slower at a time, and another one after a time with that mean.
func telegraph(rng *rand.Rand, ranks int, mean time.Duration, by float64) func(int, time.Duration) float64 {
	on, until := 0, time.Duration(0)
	return func(rank int, now time.Duration) float64 {
		for now >= until {
			on, until = rng.IntN(ranks), until+time.Duration(rng.ExpFloat64()*float64(mean))
		}
		if rank == on {
			return by
		}
		return 1
	}
}

// In 10,000 steps in which nobody is slow, no name falls, whatever the load.
func TestNobodyIsSlow(t *testing.T) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 1))
		j := &job{rng: rng, ranks: []int{2, 3, 4, 8, 16}[seed%5], period: 1 + int(seed%4), noise: 0.3,
			step: []time.Duration{5, 20, 155, 1000}[seed%4] * time.Millisecond, load: even}
		if seed%3 > 0 {
			j.load = telegraph(rng, j.ranks, time.Duration(seed%3)*500*time.Millisecond, 2)
		}
		var w slow.Watch
		for range 100 {
			if f, _ := look(&w, j.arrivals(100)); f != nil {
				t.Errorf("seed %d, %d ranks, steps of %v: rank %d: %s", seed, j.ranks, j.step, f.Rank, f)
			}
		}
	}
}

// One rank is late by 50 ms from one moment to another: there is a line for each.
func TestOneIsSlow(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		j := &job{rng: rng, ranks: 2 + int(seed%7), period: 1 + int(seed%4), step: 105 * time.Millisecond, noise: 0.05}
		late := int(seed) % j.ranks
		from, to := 100*time.Second, 300*time.Second
		j.load = func(rank int, now time.Duration) float64 {
			if rank == late && now >= from && now < to {
				return 155. / 105
			}
			return 1
		}
		var w slow.Watch
		var lines []string
		for j.now < 420*time.Second {
			began, ended := look(&w, j.arrivals(70))
			if began != nil {
				lines = append(lines, fmt.Sprintf("%d %s", began.Rank, began))
				if after := j.now - from; after < 45*time.Second || after > 80*time.Second {
					t.Errorf("seed %d: it took %v", seed, after)
				}
			}
			if ended != nil {
				lines = append(lines, "end")
				if after := j.now - to; ended.Rank != late || after < 8*time.Second || after > 25*time.Second {
					t.Errorf("seed %d: rank %d is no longer slow after %v", seed, ended.Rank, after)
				}
			}
		}
		if len(lines) != 2 || !strings.HasPrefix(lines[0], fmt.Sprint(late, " ")) || lines[1] != "end" || w.Slow() != nil {
			t.Errorf("seed %d, rank %d of %d is late: %q", seed, late, j.ranks, lines)
		}
	}
}

func TestRule(t *testing.T) {
	// play has two ranks. Rank 1 comes later in some of 300 steps of 400 ms.
	play := func(late time.Duration, unknown time.Duration, in func(step int) bool) *slow.Finding {
		var w slow.Watch
		a := []slow.Arrivals{{Rank: 0, Period: 1, Error: unknown}, {Rank: 1, Period: 1, Error: unknown}}
		for s := range 300 {
			at := int64(s+1) * int64(400*time.Millisecond)
			a[0].At, a[1].At = append(a[0].At, at), append(a[1].At, at-1)
			if in(s) {
				a[1].At[s] = at + int64(late)
			}
		}
		w.Add(a)
		return w.Slow()
	}
	always := func(int) bool { return true }
	for _, tt := range []struct {
		name          string
		late, unknown time.Duration
		in            func(int) bool
		want          string
	}{
		{"by a quarter of a step", 100 * time.Millisecond, 0, always, "100 % of the last 200 steps; the others wait 100 ms of 400 ms a step for it"},
		{"by less than a tenth", 39 * time.Millisecond, 0, always, ""},
		{"by no more than the clocks are uncertain", 100 * time.Millisecond, 51 * time.Millisecond, always, ""},
		{"by more than the clocks are uncertain", 100 * time.Millisecond, 49 * time.Millisecond, always,
			"100 % of the last 200 steps; the others wait 100 ms of 400 ms a step for it"},
		{"in every second step", 100 * time.Millisecond, 0, func(s int) bool { return s%2 == 0 },
			"50 % of the last 200 steps; the others wait 50 ms of 400 ms a step for it"},
		{"in every fourth step", 100 * time.Millisecond, 0, func(s int) bool { return s%4 == 0 }, ""},
		{"by turns of 10 s", 100 * time.Millisecond, 0, func(s int) bool { return s/25%2 == 0 }, ""},
		{"for the last 56 s of 80", 100 * time.Millisecond, 0, func(s int) bool { return s >= 160 }, ""},
		{"for the last 68 s of 80", 100 * time.Millisecond, 0, func(s int) bool { return s >= 130 },
			"85 % of the last 200 steps; the others wait 85 ms of 400 ms a step for it"},
	} {
		got := ""
		if f := play(tt.late, tt.unknown, tt.in); f != nil {
			got = f.String()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Steps that nobody saw, ranks without arrivals, and an attempt that begins again.
func TestGaps(t *testing.T) {
	var w slow.Watch
	if b, e := look(&w, nil); b != nil || e != nil {
		t.Error("nothing: a finding")
	}
	if b, e := look(&w, []slow.Arrivals{{Rank: 0, Period: 1, At: []int64{1, 2}}, {Rank: 1, Period: 1, First: 7, At: nil}}); b != nil || e != nil {
		t.Error("nothing in common: a finding")
	}
	rng := rand.New(rand.NewPCG(1, 3))
	j := &job{rng: rng, ranks: 3, period: 2, step: 100 * time.Millisecond, load: func(rank int, _ time.Duration) float64 { return []float64{1, 1, 2}[rank] }}
	for i := range 8 {
		seen := j.arrivals(50)
		if i%2 == 0 {
			w.Add(seen)
		}
	}
	if f := w.Slow(); f == nil || f.Rank != 2 || f.Step < 190*time.Millisecond || f.Step > 210*time.Millisecond {
		t.Errorf("every second look: %+v", w.Slow())
	}
	j.first = 0
	j.load = even
	if b, _ := look(&w, j.arrivals(300)); b != nil {
		t.Errorf("a new attempt: %v", b)
	}
}

func TestPeriod(t *testing.T) {
	for _, tt := range []struct {
		ops        string
		want, from int
	}{
		{"", 1, 0}, {"a", 1, 0}, {"aaaaaa", 1, 1}, {"abababab", 2, 2}, {"xyabcabcabc", 3, 5}, {strings.Repeat("x", 5) + strings.Repeat("abcd", 200), 4, 9},
		{"abcabd", 1, 0}, {strings.Repeat("baaa", 30), 4, 4}, {strings.Repeat("abc", 300) + "x" + "abcabcabc", 1, 0},
		{strings.Repeat("b"+strings.Repeat("a", 40), 20), 41, 41},
	} {
		if got, from := slow.Period([]byte(tt.ops)); got != tt.want || from != tt.from {
			t.Errorf("%.20s: %d from %d, want %d from %d", tt.ops, got, from, tt.want, tt.from)
		}
	}
}

// A real gloo job of four ranks on two CPUs, with two programs beside them that use a CPU in turns of random
// length: when its ranks came to each of 10,000 steps. Nobody is slow; but a rank that is made to come later is.
func TestRealJobUnderLoad(t *testing.T) {
	file, err := os.Open("testdata/gloo_under_load.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	in, at := bufio.NewReader(z), int64(1e15)
	came := make([][]int64, 4)
	for {
		since, err := binary.ReadUvarint(in)
		if err == io.EOF {
			break
		}
		at += int64(since)
		for rank := range came {
			after, err := binary.ReadUvarint(in)
			if err != nil {
				t.Fatal(err)
			}
			came[rank] = append(came[rank], 1000*(at+int64(after)))
		}
	}
	if n := len(came[0]); n != 10_000 {
		t.Fatalf("%d steps", n)
	}
	// play says who is slow, if a rank comes later by so much, in the order of the recording or of the blocks.
	play := func(late int, by time.Duration, blocks []int) (names []string) {
		const block = 50
		var w slow.Watch
		var shift int64
		for i, b := range blocks {
			seen := make([]slow.Arrivals, len(came))
			for rank := range seen {
				seen[rank] = slow.Arrivals{Rank: rank, Period: 1, First: int64(i * block)}
				for s := b * block; s < (b+1)*block; s++ {
					t := came[rank][s] - came[0][b*block] + shift + int64(s-b*block+1)*int64(by)
					if rank != late {
						t -= int64(by)
					}
					seen[rank].At = append(seen[rank].At, 1e18+t)
				}
			}
			shift = seen[0].At[block-1] - 1e18 + int64(40*time.Millisecond)
			if f, _ := look(&w, seen); f != nil {
				names = append(names, fmt.Sprint(f.Rank, " ", f))
			}
		}
		return names
	}
	rng := rand.New(rand.NewPCG(1, 1))
	order := make([]int, 200)
	for i := range order {
		order[i] = i
	}
	for try := range 20 {
		if names := play(0, 0, order); len(names) > 0 {
			t.Errorf("try %d: %v", try, names)
		}
		rng.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
	}
	for late := range came {
		names := play(late, 50*time.Millisecond, order)
		if len(names) != 1 || !strings.HasPrefix(names[0], fmt.Sprint(late, " ")) {
			t.Errorf("rank %d comes 50 ms later: %q", late, names)
		}
	}
}
