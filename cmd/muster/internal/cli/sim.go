package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/muster-run/muster/rendezvous/simulate"
)

const simUsage = `usage: muster sim [--nodes N] [--min N] [--max N] [--seed N] [--delay TIME] [--loss PERCENT]
                  [--faults N] [--skew TIME] [--work TIME] [--trace FILE]

Simulates the rendezvous of a job of many hosts, in virtual time and without a network: the
server that holds it, an agent on each host, and the links between them. Prints how long it
takes until all have their ranks, and what that costs. The same seed gives the same run.

  --nodes N       hosts, 1 to 131072 (default 16)
  --min N         hosts that the job needs, as in --nnodes MIN:MAX (default: all)
  --max N         hosts that it takes at most (default: all, or --min if that is more)
  --seed N        seed of all that is random (default 1)
  --delay TIME    mean latency of links, one way: each has 0.5 to 1.5 of it (default 100us)
  --loss PERCENT  part of the messages that are lost and sent again, 0 to 50 (default 0)
  --faults N      things that go wrong in the first minute, 0 to 1000 (default 0): agents
                  are killed, hosts and links fail, workers fail, hosts come and go
  --skew TIME     by how much a host's clock may be wrong, at most an hour (default 0)
  --work TIME     the server's work on each message, at most 10ms (default 10us)
  --trace FILE    write all that happens into a file, a line for each event

Hosts start within a second. A run in which the rendezvous breaks a promise, such as that
every rank is given once, ends with status 1 and says which.
`

// Limits of what is simulated: the events of a run have to fit into memory.
const (
	simMaxNodes  = 1 << 17
	simMaxFaults = 1000
)

// simCommand is `muster sim`. elapsed measures how long it took.
func simCommand(c *command, args []string, elapsed func() time.Duration) error {
	cfg, trace := simConfig(c, args)
	if err := c.refused(); err != nil {
		return err
	}
	if trace != "" {
		f, err := os.Create(trace)
		if err != nil {
			return err
		}
		defer f.Close()
		cfg.Trace = f
	}
	r, err := simulate.Run(cfg)
	if r != nil {
		printSim(c.stdout, &cfg, r, elapsed())
	}
	if err != nil {
		return fmt.Errorf("%w\nthe run can be repeated: muster sim with the same options and --trace FILE", err)
	}
	return nil
}

// simConfig reads the command line.
func simConfig(c *command, args []string) (cfg simulate.Config, trace string) {
	cfg = simulate.Config{
		Seed: 1, Nodes: 16, Workers: 8, Arrive: time.Second, Delay: 100 * time.Microsecond, Work: 10 * time.Microsecond,
		Stop: time.Second, During: time.Minute, Restart: 0.5, Measure: true,
	}
	c.number("nodes", &cfg.Nodes, 1, simMaxNodes)
	c.number("min", &cfg.Min, 1, simMaxNodes)
	c.number("max", &cfg.Max, 1, simMaxNodes)
	c.number("faults", &cfg.Faults, 0, simMaxFaults)
	c.duration("delay", &cfg.Delay, 10*time.Second)
	c.duration("skew", &cfg.Skew, time.Hour)
	c.duration("work", &cfg.Work, 10*time.Millisecond)
	c.value("seed", "a number, at least 0", func(text string) (err error) {
		cfg.Seed, err = strconv.ParseUint(text, 10, 64)
		return err
	})
	c.value("loss", "a number of percent from 0 to 50", func(text string) error {
		percent, err := strconv.ParseFloat(text, 64)
		if err != nil || !(percent >= 0 && percent <= 50) {
			return strconv.ErrRange
		}
		cfg.Loss = percent / 100
		return nil
	})
	c.StringVar(&trace, "trace", "", "")
	c.options(args)
	cfg.Jitter = cfg.Delay
	if cfg.Min == 0 {
		if cfg.Min = cfg.Nodes; cfg.Max > 0 {
			cfg.Min = min(cfg.Min, cfg.Max)
		}
	}
	if cfg.Max == 0 {
		cfg.Max = max(cfg.Nodes, cfg.Min)
	}
	switch {
	case c.errs != nil: // the rest may follow from those
	case cfg.Max < cfg.Min:
		c.wrong("--max %d is less than --min %d", cfg.Max, cfg.Min)
	case cfg.Min > cfg.Nodes:
		c.wrong("--min %d is more than --nodes %d: the hosts would wait until their join times out", cfg.Min, cfg.Nodes)
	}
	return cfg, trace
}

// printSim prints what a run was like.
func printSim(w io.Writer, cfg *simulate.Config, r *simulate.Result, took time.Duration) {
	line := func(name, format string, a ...any) {
		fmt.Fprintf(w, "%-22s "+format+"\n", append([]any{name}, a...)...)
	}
	line("nodes", "%d, %d to %d in a round, %d in the first", cfg.Nodes, cfg.Min, cfg.Max, r.FirstSize)
	line("seed", "%d", cfg.Seed)
	line("time to rendezvous", "%v from the beginning, %v from the last start (virtual)", milliseconds(r.Met), milliseconds(r.Met-r.Started))
	line("until then, per agent", "%s messages, %s bytes, at most %d bytes", each(r.ToMeet.Messages, cfg.Nodes), each(r.ToMeet.Bytes, cfg.Nodes), r.ToMeet.Most)
	line("until then, in all", "%d messages, %d bytes", r.ToMeet.Messages, r.ToMeet.Bytes)
	if cfg.Faults > 0 {
		line("faults", "%d; agents in all %d, %d lost the server, %d timed out", r.Faults, r.Nodes, r.Lost, r.TimedOut)
	}
	line("rounds", "%d in %v (virtual)", r.Rounds, milliseconds(r.Took))
	line("in all, to the server", "%d messages, %d bytes", r.Up.Messages, r.Up.Bytes)
	line("in all, to the agents", "%d messages, %d bytes", r.Down.Messages, r.Down.Bytes)
	line("simulated in", "%v, %d events", milliseconds(took), r.Events)
}

func milliseconds(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// each is a part of n, with one digit after the point.
func each(sum, n int) string { return strconv.FormatFloat(float64(sum)/float64(n), 'f', 1, 64) }
