package simulate_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous/simulate"
)

var liveSeeds = flag.Int("live-seeds", 300, "how many seeds to run of live jobs")

// randomLive is what a seed stands for as a live job, in which more goes wrong.
func randomLive(seed uint64) simulate.Config {
	rng := rand.New(rand.NewPCG(seed, 2))
	c := simulate.Random(seed, most)
	c.Live, c.Torch = true, 0
	c.Faults, c.During = 2+rng.IntN(8), time.Duration(1+rng.IntN(60))*time.Second
	if c.Restart = max(c.Restart, 0.5); seed%4 == 0 {
		c.Torn = 0.05
	}
	return c
}

// TestLiveSeeds has live jobs of up to 50 agents go on through whatever each seed has go wrong.
// `go test ./rendezvous/simulate -run TestLiveSeeds -live-seeds 1000` runs a thousand.
func TestLiveSeeds(t *testing.T) {
	if *seed != 0 {
		cfg := randomLive(*seed)
		cfg.Trace = os.Stdout
		r, err := simulate.Run(cfg)
		t.Logf("%+v\n%+v", cfg, r)
		if err != nil {
			t.Error(err)
		}
		return
	}
	failed, sum := 0, simulate.Result{}
	for n := *from; n < *from+uint64(*liveSeeds); n++ {
		cfg := randomLive(n)
		r, err := simulate.Run(cfg)
		if err == nil && r.GaveUp > 0 && cfg.Torn == 0 {
			err = fmt.Errorf("%d changes did not work out, and no state was torn", r.GaveUp)
		}
		if err != nil {
			if failed++; failed <= *show {
				t.Errorf("seed %d: %v\nto replay it: go test ./rendezvous/simulate -run TestLiveSeeds -seed %d", n, err, n)
			}
		}
		sum.Events += r.Events
		sum.Rounds += r.Rounds
		sum.Faults += r.Faults
		sum.Memberships += r.Memberships
		sum.Late += r.Late
		sum.GaveUp += r.GaveUp
	}
	t.Logf("%d of %d seeds failed; in all %+v", failed, *liveSeeds, sum)
	if sum.Memberships < 2**liveSeeds {
		t.Errorf("only %d memberships", sum.Memberships)
	}
	if sum.Late > *liveSeeds/200 { // else some wait for others that do not come to rest by themselves
		t.Errorf("%d workers are killed because they are late", sum.Late)
	}
}

// A live seed stands for one run, to the byte.
func TestLiveReplay(t *testing.T) {
	for n := uint64(1); n <= 10; n++ {
		var traces [2]bytes.Buffer
		for i := range traces {
			cfg := randomLive(n)
			cfg.Trace = &traces[i]
			_, _ = simulate.Run(cfg) // TestLiveSeeds says what is wrong with it
		}
		if !bytes.Equal(traces[0].Bytes(), traces[1].Bytes()) {
			t.Errorf("seed %d has two traces", n)
		}
	}
}
