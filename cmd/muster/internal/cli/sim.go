package cli

import (
	"errors"
	"flag"
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
takes until all have their ranks, and what that costs. A seed stands for one run.

  --nodes N       hosts, 1 to 131072 (default 16)
  --min N         hosts that the job needs, as in --nnodes MIN:MAX (default: all)
  --max N         hosts that it takes at most (default: all, or --min if that is more)
  --seed N        what is random is drawn from it (default 1)
  --delay TIME    latency of a link, one way: half of it to one and a half (default 100us)
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
func simCommand(args []string, stdout, stderr io.Writer, elapsed func() time.Duration) int {
	c := command{"sim", simUsage, stdout, stderr}
	cfg, trace, err := simConfig(args)
	if err != nil {
		return c.refuse(err)
	}
	if trace != "" {
		f, err := os.Create(trace)
		if err != nil {
			return c.fail(exitError, err)
		}
		defer f.Close()
		cfg.Trace = f
	}
	r, err := simulate.Run(cfg)
	if r != nil {
		printSim(stdout, &cfg, r, elapsed())
	}
	if err != nil {
		return c.fail(exitError, fmt.Errorf("%w\nthe run can be repeated: muster sim with the same options and --trace FILE", err))
	}
	return exitOK
}

// simConfig reads the command line.
func simConfig(args []string) (simulate.Config, string, error) {
	cfg := simulate.Config{
		Seed: 1, Nodes: 16, Workers: 8, Arrive: time.Second, Delay: 100 * time.Microsecond, Work: 10 * time.Microsecond,
		Stop: time.Second, During: time.Minute, Restart: 0.5, Measure: true,
	}
	f := simFlags{FlagSet: flag.NewFlagSet("muster sim", flag.ContinueOnError)}
	f.SetOutput(io.Discard) // the error is reported by the caller
	f.number("nodes", &cfg.Nodes, 1, simMaxNodes)
	f.number("min", &cfg.Min, 1, simMaxNodes)
	f.number("max", &cfg.Max, 1, simMaxNodes)
	f.number("faults", &cfg.Faults, 0, simMaxFaults)
	f.duration("delay", &cfg.Delay, 10*time.Second)
	f.duration("skew", &cfg.Skew, time.Hour)
	f.duration("work", &cfg.Work, 10*time.Millisecond)
	f.value("seed", "a number, at least 0", func(text string) (err error) {
		cfg.Seed, err = strconv.ParseUint(text, 10, 64)
		return err
	})
	f.value("loss", "a number of percent from 0 to 50", func(text string) error {
		percent, err := strconv.ParseFloat(text, 64)
		if err != nil || !(percent >= 0 && percent <= 50) {
			return strconv.ErrRange
		}
		cfg.Loss = percent / 100
		return nil
	})
	trace := f.String("trace", "", "")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return cfg, "", err
	}
	errs := append(f.errs, err)
	if f.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %s", quote(f.Arg(0))))
	}
	if err := errors.Join(errs...); err != nil {
		return cfg, "", err
	}
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
	case cfg.Max < cfg.Min:
		err = fmt.Errorf("--max %d is less than --min %d", cfg.Max, cfg.Min)
	case cfg.Min > cfg.Nodes:
		err = fmt.Errorf("--min %d is more than --nodes %d: they would wait until their join times out", cfg.Min, cfg.Nodes)
	}
	return cfg, *trace, err
}

// simFlags are options with bounds; errs is what was wrong with their values.
type simFlags struct {
	*flag.FlagSet
	errs []error
}

// value is an option that set reads.
func (f *simFlags) value(name, want string, set func(text string) error) {
	f.Func(name, "", func(text string) error {
		if set(text) != nil {
			f.errs = append(f.errs, fmt.Errorf("--%s %s: want %s", name, quote(text), want))
		}
		return nil
	})
}

func (f *simFlags) number(name string, v *int, least, most int) {
	f.value(name, fmt.Sprintf("a number from %d to %d", least, most), func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return strconv.ErrRange
		}
		*v = n
		return nil
	})
}

func (f *simFlags) duration(name string, v *time.Duration, most time.Duration) {
	f.value(name, fmt.Sprintf("a time such as 200us or 3s, at most %v", most), func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d > most {
			return strconv.ErrRange
		}
		*v = d
		return nil
	})
}

// printSim prints what a run was like.
func printSim(w io.Writer, cfg *simulate.Config, r *simulate.Result, took time.Duration) {
	line := func(name, format string, a ...any) {
		fmt.Fprintf(w, "%-22s "+format+"\n", append([]any{name}, a...)...)
	}
	line("nodes", "%d, %d to %d in a round, %d in the first", cfg.Nodes, cfg.Min, cfg.Max, r.FirstSize)
	line("seed", "%d", cfg.Seed)
	line("time to rendezvous", "%v from the first start, %v from the last (virtual)", milliseconds(r.Met), milliseconds(r.Met-r.Started))
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
