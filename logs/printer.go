package logs

import (
	"io"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/text"
)

const (
	// What waits in a Printer: more than for a console, which is not to lag behind, since what was
	// written long ago comes file by file.
	maxPrintedBytes = 32 << 20
	maxPrintedLines = 256 << 10
	// pastTime is how long what was written before a Printer began may take to come.
	pastTime = time.Second
)

// PrinterConfig says how a Printer writes. Prefix is required.
type PrinterConfig struct {
	// Prefix is what is put before each line of a rank, or of several, "0-2,5".
	Prefix func(ranks string, stderr bool) string
	// Collapse writes a line that several ranks have written once. With Live lines come as they
	// are written, and equal ones within 100 ms; without, a line waits for others until
	// there is too much.
	Collapse, Live bool
}

// A Printer writes lines of several workers to one writer, byte for byte and never mixed. Its
// methods may be called concurrently.
type Printer struct {
	cfg PrinterConfig
	to  *console

	mu    sync.Mutex // guards the rest
	began time.Time
	std   [2]printed // stdout, stderr
	timer *time.Timer
	over  bool
}

// A printed is what a Printer writes of all workers' stdout, or stderr.
type printed struct {
	t     *tail
	ranks map[int]*printedRank
}

type printedRank struct {
	*follower
	attempt string
}

// NewPrinter returns a Printer. The caller owes Close, after which w is the caller's again.
func NewPrinter(w io.Writer, cfg PrinterConfig) *Printer {
	p := &Printer{cfg: cfg, to: &console{w: w}, began: time.Now()}
	for i := range p.std {
		t := newTail(tailConfig{to: p.to, whole: true})
		if cfg.Collapse {
			t.collapser = newCollapser(t, collapseDelay, func(ranks []int) string {
				slices.Sort(ranks) // they are in the order in which they came
				return cfg.Prefix(text.Ranges(ranks, ","), i == 1)
			})
			t.collapser.grows, t.collapser.maxBytes, t.collapser.maxLines = true, maxPrintedBytes, maxPrintedLines
		}
		p.std[i] = printed{t, map[int]*printedRank{}}
	}
	return p
}

// Put writes some of what a rank has written in an attempt; late means that another attempt has
// begun since, so that its lines say of which they are. The error is that of the writer.
func (p *Printer) Put(rank int, stderr bool, attempt string, late bool, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.std[0]
	if stderr {
		s = &p.std[1]
	}
	r := s.ranks[rank]
	if r == nil {
		r = &printedRank{&follower{t: s.t, localRank: rank, index: len(s.t.followers), limit: -1}, attempt}
		s.ranks[rank], s.t.followers = r, append(s.t.followers, r.follower)
		if s.t.collapser != nil {
			s.t.collapser.grow()
		}
	}
	if r.attempt != attempt {
		s.t.endLine(r.follower)
		r.attempt = attempt
	}
	prefix := p.cfg.Prefix(strconv.Itoa(rank), stderr)
	if late {
		prefix = latePrefix(prefix, attempt)
	}
	if string(r.prefix) != prefix {
		r.prefix = []byte(prefix)
	}
	c := s.t.collapser
	if c != nil {
		c.delay = math.MaxInt64
		if now := time.Now(); p.cfg.Live {
			c.delay = max(collapseDelay, p.began.Add(pastTime).Sub(now))
		}
	}
	if late && c != nil { // its lines are not equal to those of the next attempt
		c.flushTo(math.MaxInt64)
		defer c.flushTo(math.MaxInt64)
	}
	s.t.piece(r.follower, data)
	p.wait()
	return p.to.failure()
}

// End ends the line that a rank has begun in an attempt.
func (p *Printer) End(rank int, stderr bool, attempt string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range p.std {
		if r := s.ranks[rank]; r != nil && r.attempt == attempt && stderr == (i == 1) {
			s.t.endLine(r.follower)
		}
	}
	return p.to.failure()
}

// Flush writes the lines that wait for equal ones.
func (p *Printer) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(func(c *collapser) { c.flushTo(math.MaxInt64) })
	return p.to.failure()
}

// Close writes what there is, and ends lines that are begun.
func (p *Printer) Close() error {
	err := p.Flush()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for _, s := range p.std {
		for _, f := range s.t.followers {
			s.t.endLine(f)
		}
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	if err != nil {
		return err
	}
	return p.to.failure()
}

func (p *Printer) expire(f func(*collapser)) {
	for _, s := range p.std {
		if s.t.collapser != nil {
			f(s.t.collapser)
		}
	}
}

// wait makes lines come out in time. The caller holds mu.
func (p *Printer) wait() {
	next := time.Duration(0)
	p.expire(func(c *collapser) {
		if d := c.wait(time.Now()); d > 0 && (next == 0 || d < next) {
			next = d
		}
	})
	switch {
	case next == 0 || !p.cfg.Live || p.over:
	case p.timer == nil:
		p.timer = time.AfterFunc(next, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.expire(func(c *collapser) { c.expire(time.Now()) })
			p.wait()
		})
	default:
		p.timer.Reset(next)
	}
}
