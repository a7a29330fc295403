package timer

import "sync"

// A tally counts what is under way, mostly goroutines. Unlike with a sync.WaitGroup, they may be started
// while others wait.
type tally struct {
	mu   sync.Mutex // guards n
	n    int
	none sync.Cond // of mu; made by newTally
}

func newTally() *tally {
	t := &tally{}
	t.none.L = &t.mu
	return t
}

func (t *tally) Go(f func()) {
	t.add(1)
	go func() {
		defer t.add(-1)
		f()
	}()
}

func (t *tally) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n += n; t.n == 0 {
		t.none.Broadcast()
	}
}

func (t *tally) Wait() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n > 0 {
		t.none.Wait()
	}
}

// maxWaiting bounds how much waits for a slow consumer.
const maxWaiting = 1 << 16

// A courier calls functions one after the other, in order, from a goroutine that
// exists only while there are some. So who adds one is never held up.
type courier struct {
	tally *tally

	mu      sync.Mutex // guards the rest
	waiting []func()
	running bool
	dropped int
}

func (c *courier) add(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= maxWaiting {
		c.dropped++
		return
	}
	c.waiting = append(c.waiting, f)
	if !c.running {
		c.running = true
		c.tally.Go(c.drain)
	}
}

func (c *courier) drain() {
	for {
		c.mu.Lock()
		batch := c.waiting
		c.waiting = nil
		c.running = len(batch) > 0
		c.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, f := range batch {
			f()
		}
	}
}

func (c *courier) lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}
