// Command sim simulates the rendezvous of many jobs, each from a seed of its own, and says which
// break a promise of the rendezvous.
//
//	go run ./rendezvous/internal/simulate/sim -seeds 1000 -live
//	go run ./rendezvous/internal/simulate/sim -seeds 1 -from 17 -trace
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/simulate"
)

func main() {
	seeds := flag.Uint64("seeds", 1000, "how many seeds to run")
	from := flag.Uint64("from", 1, "the first of them")
	nodes := flag.Int("nodes", 50, "the most hosts of a job")
	live := flag.Bool("live", false, "workers go on in the next round, as under --live")
	faults := flag.Int("faults", 0, "with -live, how many things go wrong within two minutes; 0: as each seed has it")
	step := flag.Duration("step", 0, "with -live, how long a step takes; 0: 0.3 s")
	trace := flag.Bool("trace", false, "print what happens; for one seed")
	flag.Parse()
	if *nodes < 1 || *trace && *seeds != 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "sim: want -nodes of 1 or more, -trace with -seeds 1 only, and no arguments")
		os.Exit(2)
	}
	random := simulate.Random
	if *live {
		random = simulate.RandomLive
	}
	config := func(seed uint64) simulate.Config {
		cfg := random(seed, *nodes)
		cfg.Step = *step
		if *faults > 0 {
			cfg.Faults, cfg.During = *faults, 2*time.Minute
		}
		if *trace {
			cfg.Trace = os.Stdout
		}
		return cfg
	}
	failed, began := 0, time.Now()
	sum := simulate.Seeds(*from, *seeds, config, func(seed uint64, err error) {
		failed++
		fmt.Printf("seed %d: %v\n", seed, err)
	})
	fmt.Printf("%d of %d seeds failed, in %v; in all %+v\n", failed, *seeds, time.Since(began).Round(time.Second), sum)
	if failed > 0 {
		os.Exit(1)
	}
}
