package logs

import (
	"io"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

const (
	// What waits in a Printer: more than for a console, which is not to lag behind, since what was
	// written long ago comes file by file.
	maxPrintedBytes = 32 << 20
	maxPrintedLines = 256 << 10
	// pastTime is how long what was written before a Printer began may take to come.
	pastTime = time.Second
)

// PrinterConfig says how a Printer writes.
type PrinterConfig struct {
	// Prefix is what is put before each line of a rank, or of several, "0-2,5". Nil: nothing.
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

	mu         sync.Mutex // guards the rest
	began      time.Time
	tails      map[bool]*tail // of stdout, and of stderr
	collapsers []*collapser   // with Collapse, theirs
	streams    map[printed]*follower
	timer      *time.Timer
	over       bool
}

// A printed is the name of a stream.
type printed struct {
	rank   int
	stderr bool
}

// NewPrinter returns a Printer. The caller owes Close, after which w is the caller's again.
func NewPrinter(w io.Writer, cfg PrinterConfig) *Printer {
	if cfg.Prefix == nil {
		cfg.Prefix = func(string, bool) string { return "" }
	}
	p := &Printer{cfg: cfg, to: &console{w: w}, began: time.Now(),
		tails: map[bool]*tail{}, streams: map[printed]*follower{}}
	for _, stderr := range []bool{false, true} {
		t := newTail(tailConfig{to: p.to, whole: true})
		if p.tails[stderr] = t; cfg.Collapse {
			c := newCollapser(t, collapseDelay, func(ranks []int) string {
				slices.Sort(ranks) // they are in the order in which they came
				return cfg.Prefix(text.Ranges(ranks, ","), stderr)
			})
			c.grows, c.maxBytes, c.maxLines = true, maxPrintedBytes, maxPrintedLines
			t.collapser, p.collapsers = c, append(p.collapsers, c)
		}
	}
	return p
}

// Put writes some of what a rank has written in an attempt; late means that another attempt has
// begun since, so that its lines say of which they are. The error is that of the writer.
func (p *Printer) Put(rank int, stderr bool, attempt string, late bool, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, f := p.tails[stderr], p.streams[printed{rank, stderr}]
	c := t.collapser
	if f == nil {
		f = &follower{t: t, localRank: rank, index: len(t.followers), limit: -1, attempt: attempt}
		p.streams[printed{rank, stderr}], t.followers = f, append(t.followers, f)
		if c != nil {
			c.grow()
		}
	}
	if f.attempt != attempt {
		t.endLine(f)
		f.attempt = attempt
	}
	prefix := p.cfg.Prefix(strconv.Itoa(rank), stderr)
	if late {
		prefix = latePrefix(prefix, attempt)
	}
	if string(f.prefix) != prefix {
		f.prefix = []byte(prefix)
	}
	if c != nil {
		if c.delay = math.MaxInt64; p.cfg.Live {
			c.delay = max(collapseDelay, pastTime-time.Since(p.began))
		}
		if late { // its lines are not equal to those of the next attempt
			c.flushTo(math.MaxInt64)
			defer c.flushTo(math.MaxInt64)
		}
	}
	t.piece(f, data)
	p.wait()
	return p.to.failure()
}

// End ends the line that a rank has begun in an attempt.
func (p *Printer) End(rank int, stderr bool, attempt string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.streams[printed{rank, stderr}]; f != nil && f.attempt == attempt {
		f.t.endLine(f)
	}
	return p.to.failure()
}

// Flush writes the lines that wait for equal ones.
func (p *Printer) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.collapsers {
		c.flushTo(math.MaxInt64)
	}
	return p.to.failure()
}

// Close writes what there is, and ends lines that are begun.
func (p *Printer) Close() error {
	_ = p.Flush() // the console keeps its error
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for _, f := range p.streams {
		f.t.endLine(f)
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	return p.to.failure()
}

// wait makes lines come out in time. The caller holds mu.
func (p *Printer) wait() {
	next := never
	for _, c := range p.collapsers {
		next = min(next, c.wait(time.Now()))
	}
	switch {
	case next == never || !p.cfg.Live || p.over:
	case p.timer == nil:
		p.timer = time.AfterFunc(next, func() { // once more after Close, perhaps: nothing waits then, and over is set
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, c := range p.collapsers {
				c.expire(time.Now())
			}
			p.wait()
		})
	default:
		p.timer.Reset(next)
	}
}
