package logs

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/text"
)

// maxGathered bounds what waits for the console in a Gather, in bytes.
const maxGathered = 16 << 20

// maxSpare is how many buffers are kept for later.
const maxSpare = 16

// portionSize is about what a portion takes beside its data, in bytes.
const portionSize = 128

// defaultGatherPrefix is the template of the prefix of a line of any host.
const defaultGatherPrefix = "[${rank} ${hostname}]:"

// A Gather copies the lines of all workers of a job to the console of a Run, each with its
// rank and host, and with Config.Collapse equal lines of all ranks once. Its methods may be
// called concurrently.
type Gather struct {
	run   *Run
	world int
	late  atomic.Pointer[string] // the attempt's name, once it is not the last any more
	std   [2]*gathered           // stdout, stderr
}

// A gathered is what a Gather does for one console. Its goroutine owns the tail, which follows no
// files: it has the followers, one for each rank, and the way to the console.
type gathered struct {
	of   *Gather
	t    *tail
	wake chan struct{} // has room for one
	done chan struct{}

	mu     sync.Mutex // guards the rest
	room   sync.Cond  // there is room, or it is closed
	queue  []portion
	held   int      // bytes in queue
	spare  [][]byte // buffers to use again
	closed bool
}

// A portion is some of what one worker has written.
type portion struct {
	f      *follower
	prefix string
	data   []byte
	end    bool // nothing comes after it for now
}

// Gather begins to copy lines of the workers with the ranks from 0 to world-1. The caller owes
// Close, before that of the Run.
func (r *Run) Gather(world int) *Gather {
	g := &Gather{run: r, world: world}
	for i, to := range []*console{r.stdout, r.stderr} {
		t := newTail(tailConfig{to: to, log: r.log})
		t.followers = make([]*follower, world)
		for rank := range t.followers {
			t.followers[rank] = &follower{t: t, localRank: rank, index: rank, limit: -1}
		}
		if r.cfg.Collapse && world > 1 {
			t.collapser = newCollapser(t, collapseDelay, func(ranks []int) string { return g.marked(g.prefix(text.Ranges(ranks, ","), "")) })
		}
		t.timer = time.NewTimer(time.Hour)
		std := &gathered{of: g, t: t, wake: make(chan struct{}, 1), done: make(chan struct{})}
		std.room.L = &std.mu
		g.std[i] = std
		go std.run()
	}
	return g
}

// prefix is that of a line.
func (g *Gather) prefix(ranks, host string) string {
	template := g.run.cfg.LinePrefixTemplate
	if template == defaultLinePrefix {
		if template = defaultGatherPrefix; host == "" {
			template = "[${rank}]:"
		}
	}
	return expand(template, map[string]string{"role_name": "", "local_rank": "", "rank": ranks, "hostname": host})
}

// Late says that lines which come out from now on come after another attempt has begun: the name of
// theirs is put into their prefix then.
func (g *Gather) Late(attempt string) {
	if attempt != "" {
		g.late.Store(&attempt)
	}
}

// marked is a prefix with the name of the attempt, if that is needed.
func (g *Gather) marked(prefix string) string {
	if late := g.late.Load(); late != nil {
		return latePrefix(prefix, *late)
	}
	return prefix
}

// Put copies some of what a worker has written, as Follow emits it, and says where some of it is
// lost. It waits while the console is too far behind. A rank that there is not is an error.
func (g *Gather) Put(host string, c *Chunk) error {
	rank := c.Worker.Rank
	if rank < 0 || rank >= g.world {
		return fmt.Errorf("rank %d of a world of %d", rank, g.world)
	}
	if len(c.Data) == 0 && c.Lost == 0 || !text.RankSet(g.run.cfg.RanksFilter).Has(rank) {
		return nil
	}
	std := g.of(c.Stderr)
	p := portion{prefix: g.prefix(strconv.Itoa(rank), host), data: std.buffer()}
	if c.Lost > 0 {
		p.data = fmt.Appendf(p.data, "(muster: %s of this worker's output are missing)\n", text.Size(c.Lost))
	}
	p.data = append(p.data, c.Data...)
	std.put(rank, p)
	return nil
}

// End ends the line that a worker has begun on a console.
func (g *Gather) End(rank int, stderr bool) {
	if rank >= 0 && rank < g.world {
		g.of(stderr).put(rank, portion{end: true})
	}
}

// Progress is how many bytes have come out, or were lost.
func (g *Gather) Progress() (n int64) {
	for _, s := range g.std {
		n += s.t.counts.bytes.Load() + s.t.counts.lost.Load()
	}
	return n
}

func (g *Gather) of(stderr bool) *gathered {
	if stderr {
		return g.std[1]
	}
	return g.std[0]
}

// Close copies what was put, and ends. When ctx ends first, because the console is stuck, what
// is left is counted as lost.
func (g *Gather) Close(ctx context.Context) (Stats, error) {
	var stats Stats
	for _, std := range g.std {
		std.close()
	}
	var err error
	for _, std := range g.std {
		if stuck := await(ctx, std.done); stuck != nil {
			std.t.abandoned.Store(true)
			std.mu.Lock()
			std.t.counts.lost.Add(int64(max(0, std.held-portionSize*len(std.queue))) + std.t.counts.held.Load())
			std.mu.Unlock()
			err = fmt.Errorf("gathered lines not written in time: %w", stuck)
		}
		std.t.addTo(&stats)
	}
	return stats, err
}

func (s *gathered) put(rank int, p portion) {
	p.f = s.t.followers[rank]
	s.mu.Lock()
	for s.held > maxGathered && !s.closed {
		s.room.Wait()
	}
	if !s.closed {
		s.queue, s.held = append(s.queue, p), s.held+len(p.data)+portionSize
	}
	s.mu.Unlock()
	s.signal()
}

// buffer returns an empty one.
func (s *gathered) buffer() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.spare)
	if n == 0 {
		return nil
	}
	b := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return b[:0]
}

func (s *gathered) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *gathered) close() {
	s.mu.Lock()
	s.closed = true
	s.room.Broadcast()
	s.mu.Unlock()
	s.signal()
}

func (s *gathered) run() {
	defer close(s.done)
	for {
		s.mu.Lock()
		queue, closed := s.queue, s.closed
		s.queue = nil
		s.mu.Unlock()
		for i := range queue {
			s.copy(&queue[i])
			s.mu.Lock()
			s.held -= len(queue[i].data) + portionSize
			if len(s.spare) < maxSpare {
				s.spare = append(s.spare, queue[i].data)
			}
			s.room.Broadcast()
			s.mu.Unlock()
		}
		c := s.t.collapser
		switch {
		case len(queue) > 0:
			continue
		case closed:
			if c != nil {
				c.flushTo(math.MaxInt64)
			}
			for _, f := range s.t.followers {
				s.t.endLine(f)
			}
			return
		}
		wait := time.Hour
		if c != nil {
			c.expire(time.Now())
			if left := c.wait(time.Now()); left > 0 {
				wait = left
			}
		}
		s.t.timer.Reset(wait)
		select {
		case <-s.wake:
		case <-s.t.timer.C:
		}
	}
}

// copy copies a portion.
func (s *gathered) copy(p *portion) {
	if p.end {
		s.t.endLine(p.f)
		return
	}
	if prefix := s.of.marked(p.prefix); string(p.f.prefix) != prefix {
		p.f.prefix = []byte(prefix)
	}
	s.t.piece(p.f, p.data)
}
