package simulate

import (
	"math/rand/v2"
	"time"
)

// Random returns what a seed of the tests stands for: a job of at most so many
// hosts, its settings, its network and how much goes wrong.
func Random(seed uint64, most int) Config {
	rng := rand.New(rand.NewPCG(seed, 1))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	chance := func(p float64) bool { return rng.Float64() < p }

	c := Config{Seed: seed, Measure: chance(0.1)}
	switch rng.IntN(4) {
	case 0:
		c.Nodes = 1 + rng.IntN(min(4, most))
	case 1, 2:
		c.Nodes = 1 + rng.IntN(min(12, most))
	default:
		c.Nodes = 1 + rng.IntN(most)
	}
	c.Min, c.Max = c.Nodes, c.Nodes
	if chance(0.7) {
		c.Min = 1 + rng.IntN(c.Nodes)
		c.Max = max(c.Min, c.Nodes+rng.IntN(5)-2)
	}
	c.Settings.LastCall = between(1*time.Second, 10*time.Second)
	c.Settings.KeepAliveInterval = between(1*time.Second, 5*time.Second)
	c.Settings.KeepAliveMaxAttempt = 3 + rng.IntN(3)
	c.Settings.Join = between(60*time.Second, 120*time.Second)
	c.Arrive = between(1, 3*time.Second)
	if chance(0.2) {
		c.Arrive = between(1, 30*time.Second)
	}
	c.Delay = between(10*time.Microsecond, 2*time.Millisecond)
	if chance(0.2) {
		c.Delay = between(1*time.Millisecond, 200*time.Millisecond)
	}
	c.Jitter = between(0, 2*c.Delay)
	if chance(0.3) {
		c.Loss = rng.Float64() * 0.1
	}
	if chance(0.5) {
		c.Skew = between(0, time.Minute)
	}
	c.Stop = between(0, time.Second)
	if chance(0.2) {
		c.Stop = between(0, 10*time.Second)
	}
	if chance(0.8) {
		c.Faults = 1 + rng.IntN(6)
		c.During = between(1*time.Second, 40*time.Second)
		c.Restart = []float64{0, 0.5, 0.9, 1}[rng.IntN(4)]
	}
	c.Elected = chance(0.2)
	if chance(0.15) {
		mix(&c, rng)
	}
	return c
}

// mix has some of PyTorch's agents take part. Their clocks must not be further
// apart than their own rules bear.
func mix(c *Config, rng *rand.Rand) {
	c.Elected = false
	c.Nodes = min(max(c.Nodes, 2), 16)
	c.Torch = min(1+rng.IntN(c.Nodes-1), 5)
	c.Max = max(min(c.Max, c.Nodes+2), c.Min)
	c.Min = min(c.Min, c.Nodes)
	c.Settings.KeepAliveInterval, c.Settings.KeepAliveMaxAttempt = 5*time.Second, 3
	c.Settings.LastCall = max(c.Settings.LastCall, 4*time.Second) // they look once a second, over lossy links
	c.Skew = time.Duration(rng.Int64N(int64(2 * time.Second)))
	c.Delay = min(c.Delay, 20*time.Millisecond)
}

// RandomLive returns what a seed stands for as a live job, in which more goes wrong.
func RandomLive(seed uint64, most int) Config {
	rng := rand.New(rand.NewPCG(seed, 2))
	c := Random(seed, most)
	c.Live, c.Torch = true, 0
	c.Faults, c.During = 2+rng.IntN(8), time.Duration(1+rng.IntN(60))*time.Second
	if c.Restart = max(c.Restart, 0.5); seed%4 == 0 {
		c.Inconsistent = 0.05
	}
	return c
}
