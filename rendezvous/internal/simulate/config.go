package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// A Config says what is simulated. Times are virtual.
type Config struct {
	Seed uint64
	// Nodes is how many hosts have an agent at the beginning; Torch of them have one of
	// PyTorch's.
	Nodes, Torch int
	// Min and Max are --nnodes.
	Min, Max int
	// Workers is how many each node has; 0 means 1 to 3, with roles.
	Workers int
	// Settings are those of --rdzv-conf: the times of the join, the last call and keep-alives
	// count.
	Settings rendezvous.Settings

	// Arrive is the time within which agents start.
	Arrive time.Duration
	// Delay is the mean latency of the links, one way; each has its own, between
	// half of it and one and a half. Jitter is the most that a message takes longer.
	Delay, Jitter time.Duration
	// Loss is the part of the messages that are lost and sent again, at most 0.5.
	Loss float64
	// Skew is the most by which a host's clock is wrong.
	Skew time.Duration
	// Work is what the holder does for each message that it gets or sends.
	Work time.Duration
	// Stop is the longest that a node's workers take to stop.
	Stop time.Duration

	// Live has the workers of a round continue in the next, as under --live. Inconsistent is the part of those
	// that pause between two steps, and Step how long a step takes; 0 means 0.3 s.
	Live         bool
	Inconsistent float64
	Step         time.Duration

	// Elected has another holder take over when one is lost, as the etcd and quorum
	// backends do; otherwise no holder is lost.
	Elected bool

	// Faults is how many things go wrong within During.
	Faults int
	During time.Duration
	// Restart is the part of the agents that are started again, as new nodes, after
	// they have died.
	Restart float64

	// Measure counts bytes.
	Measure bool
	// Trace, if set, gets a line for everything that happens.
	Trace io.Writer
}

// limit is how long a node may be silent.
func (c *Config) limit() time.Duration { return c.Settings.KeepAliveLimit() }

func (c *Config) fill() error {
	c.Settings = c.Settings.WithDefaults()
	c.Step = cmp.Or(c.Step, 300*time.Millisecond)
	var errs []error
	if c.Nodes < 1 || c.Torch < 0 || c.Torch > c.Nodes {
		errs = append(errs, fmt.Errorf("field Nodes is %d and Torch %d; want a node at least, and Torch from 0 to Nodes", c.Nodes, c.Torch))
	}
	if c.Live && c.Torch > 0 {
		errs = append(errs, errors.New("fields Live and Torch are both set; agents of PyTorch take no part in live changes"))
	}
	if c.Min < 1 || c.Max < c.Min {
		errs = append(errs, fmt.Errorf("field Min is %d and Max %d; want 1 or more, and Max not below Min", c.Min, c.Max))
	}
	if !(c.Loss >= 0 && c.Loss <= 0.5) {
		errs = append(errs, fmt.Errorf("field Loss is %v; want 0 to 0.5", c.Loss))
	}
	if c.Faults < 0 || c.Faults > 0 && c.During <= 0 {
		errs = append(errs, fmt.Errorf("field Faults is %d and During %v; want 0 or more, and a time above 0 for faults", c.Faults, c.During))
	}
	return errors.Join(errs...)
}

// A Result is what a run was like.
type Result struct {
	Met       time.Duration // when all of the first round had begun to run
	Started   time.Duration // when the last of the first agents started
	FirstSize int           // of the first round
	Took      time.Duration // virtual time of the run
	Rounds    int
	Nodes     int // agents in all, with those that were started again
	Faults    int
	Events    int // of the simulation
	Lost      int // agents that lost the holder
	TimedOut  int // agents whose join took too long
	// Memberships is how many a live job had, Late how many workers were killed because others
	// waited for them, and GaveUp how many changes did not work out.
	Memberships, Late, GaveUp int
	// Up is what agents sent in the whole run, Down what they got.
	Up, Down Traffic
	// ToMeet is what had been sent when the first round began to run.
	ToMeet Traffic
}

// Traffic is messages and bytes; Most is the most bytes of one connection.
type Traffic struct{ Messages, Bytes, Most int }
