package simulate_test

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/simulate"
)

var liveSeeds = flag.Uint64("live-seeds", 300, "how many seeds to run of live jobs")

// TestLiveSeeds has live jobs of up to 50 agents continue through whatever each seed has go wrong.
// `go test ./rendezvous/internal/simulate -run TestLiveSeeds -live-seeds 1000` runs a thousand.
func TestLiveSeeds(t *testing.T) {
	if *seed != 0 {
		cfg := simulate.RandomLive(*seed, most)
		cfg.Trace = os.Stdout
		r, err := simulate.Run(cfg)
		t.Logf("%+v\n%+v", cfg, r)
		if err != nil {
			t.Error(err)
		}
		return
	}
	failed := 0
	sum := simulate.Seeds(*from, *liveSeeds, func(n uint64) simulate.Config { return simulate.RandomLive(n, most) }, func(n uint64, err error) {
		if failed++; failed <= *show {
			t.Errorf("seed %d: %v\nto replay it: go test ./rendezvous/internal/simulate -run TestLiveSeeds -seed %d", n, err, n)
		}
	})
	t.Logf("%d of %d seeds failed; in all %+v", failed, *liveSeeds, sum)
	if sum.Memberships < 2*int(*liveSeeds) {
		t.Errorf("only %d memberships", sum.Memberships)
	}
	if sum.Late > int(*liveSeeds/200) { // else some wait for others that do not pause by themselves
		t.Errorf("%d workers are killed because they are late", sum.Late)
	}
}

// TestLiveLineage has much go wrong on few hosts within few steps, so that some come back that have missed
// a membership while the others are at the step that they have completed themselves.
func TestLiveLineage(t *testing.T) {
	config := func(n uint64) simulate.Config {
		cfg := simulate.RandomLive(n, 4)
		cfg.Faults, cfg.During, cfg.Step = 60, 2*time.Minute, 2*time.Second
		return cfg
	}
	failed := func(n uint64, err error) {
		t.Errorf("seed %d: %v\nto replay it: go run ./rendezvous/internal/simulate/sim -live -faults 60 -step 2s -nodes 4 -seeds 1 -trace -from %d", n, err, n)
	}
	simulate.Seeds(2166, 1, config, failed) // in which two had different states, as long as steps alone were compared
	sum := simulate.Seeds(*from, *liveSeeds, config, failed)
	t.Logf("in all %+v", sum)
}

// A live seed stands for one run, to the byte.
func TestLiveReplay(t *testing.T) {
	for n := uint64(1); n <= 10; n++ {
		var traces [2]bytes.Buffer
		for i := range traces {
			cfg := simulate.RandomLive(n, most)
			cfg.Trace = &traces[i]
			_, _ = simulate.Run(cfg) // TestLiveSeeds says what is wrong with it
		}
		if !bytes.Equal(traces[0].Bytes(), traces[1].Bytes()) {
			t.Errorf("seed %d has two traces", n)
		}
	}
}
