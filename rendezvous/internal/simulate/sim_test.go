package simulate_test

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/muster-run/muster/rendezvous/internal/simulate"
)

var (
	seed  = flag.Uint64("seed", 0, "run only this seed and print what happens in it")
	seeds = flag.Uint64("seeds", 1000, "how many seeds to run")
	show  = flag.Int("show", 5, "how many failures to report")
	from  = flag.Uint64("from", 1, "the first of them")
)

const most = 50

// TestSeeds runs the rendezvous of up to 50 agents with whatever each seed has go
// wrong.
func TestSeeds(t *testing.T) {
	if *seed != 0 {
		cfg := simulate.Random(*seed, most)
		cfg.Trace = os.Stdout
		t.Logf("%+v", cfg)
		r, err := simulate.Run(cfg)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%+v", r)
		return
	}
	failed := 0
	sum := simulate.Seeds(*from, *seeds, func(n uint64) simulate.Config { return simulate.Random(n, most) }, func(n uint64, err error) {
		if failed++; failed <= *show {
			t.Errorf("seed %d: %v\nto replay it: go test ./rendezvous/internal/simulate -run TestSeeds -seed %d", n, err, n)
		}
	})
	t.Logf("%d of %d seeds failed; in all %+v", failed, *seeds, sum)
}

// TestReplay has a seed stand for one run, to the byte.
func TestReplay(t *testing.T) {
	for n := uint64(1); n <= 60; n++ {
		var traces [2]bytes.Buffer
		for i := range traces {
			cfg := simulate.Random(n, most)
			cfg.Trace = &traces[i]
			_, _ = simulate.Run(cfg) // TestSeeds says what is wrong with it
		}
		if !bytes.Equal(traces[0].Bytes(), traces[1].Bytes()) {
			a, b := bytes.Split(traces[0].Bytes(), []byte("\n")), bytes.Split(traces[1].Bytes(), []byte("\n"))
			for i := range min(len(a), len(b)) {
				if !bytes.Equal(a[i], b[i]) {
					t.Errorf("seed %d: line %d is %q and then %q", n, i+1, a[i], b[i])
					break
				}
			}
		}
	}
}
