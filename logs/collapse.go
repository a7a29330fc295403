package logs

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"slices"
	"time"
)

const (
	// collapseDelay is how long a line waits at most, with Config.Collapse, for
	// the same line of other ranks.
	collapseDelay = 100 * time.Millisecond

	// What waits is bounded: beyond one of these the oldest line waits no longer.
	maxHeldBytes = 2 << 20
	maxHeldLines = 16 << 10
	maxHeldSets  = 8 << 20 // words of collapser.sets
	// maxCollapsed is the length, in bytes, of the longest line that waits for
	// others; longer ones are copied at once.
	maxCollapsed = 4 << 10
	// maxSteps bounds the search for a line among those with its hash.
	maxSteps = 256
)

// A collapser holds a tail's lines for a moment, so that equal lines of several
// files become one. What it holds is a queue of lines, each with the files that
// have written it. A file joins the first equal line behind the one that it wrote
// or joined last, else appends its own; so the order of each file's lines stays.
// If lines that only this file has written come before a line that it joins, they
// leave the queue before that line. Behind it in the queue, they would keep the file
// from joining it.
//
// The head of the queue leaves it when no file can join it any more, because
// each has done so or has gone past it (where all files are known), and after the
// delay at the latest. Only the tail's goroutine uses it.
type collapser struct {
	t      *tail
	delay  time.Duration
	prefix setPrefix
	seed   maphash.Seed
	grows  bool // files may be added

	maxBytes, maxLines int // that wait

	queue []held   // from head on
	head  int      // index in queue
	first int64    // position of queue[head]; positions count all lines ever held
	text  []byte   // the texts of queue
	sets  []uint64 // the files of queue, words of them a line
	words int
	last  []int64 // by file: position of the line that it wrote or joined last
	own   []line  // of the units that are being taken: lines that wait for one to join
	extra int     // bytes in held.before
	index []chain // by hash modulo its length; nil until needed

	out []byte
	raw int64 // bytes in out that the workers wrote
}

// A setPrefix is the prefix of lines that the files of a set have written. It keeps the last one, as many lines in a
// row are mostly of the same files.
type setPrefix struct {
	expand func(localRanks []int) string // of two at least
	set    []uint64                      // which text is for
	text   []byte
}

// of returns it for a set of followers. It holds until the next call.
func (p *setPrefix) of(set []uint64, followers []*follower) []byte {
	if slices.Equal(set, p.set) {
		return p.text
	}
	var one *follower
	var ranks []int
	for i, f := range followers {
		if set[i/64]&(1<<(i%64)) != 0 {
			one = f
			ranks = append(ranks, f.localRank)
		}
	}
	if p.set = append(p.set[:0], set...); len(ranks) == 1 {
		p.text = append(p.text[:0], one.prefix...)
	} else {
		p.text = append(p.text[:0], p.expand(ranks)...)
	}
	return p.text
}

// A held is one line that waits.
type held struct {
	from, to int // of text
	hash     uint64
	next     int64 // position of the next in the same chain; 0: none
	due      time.Time
	before   []byte // lines of single files that come before it, with their prefixes
	raw      int    // bytes in before that the workers wrote
}

// A line that is not held yet.
type line struct {
	text []byte
	hash uint64
}

// A chain is the first and last position of the lines of one place in the index.
type chain struct{ first, last int64 }

func newCollapser(t *tail, delay time.Duration, prefix func([]int) string) *collapser {
	return &collapser{
		t: t, delay: delay, prefix: setPrefix{expand: prefix}, seed: maphash.MakeSeed(), first: 1,
		maxBytes: maxHeldBytes, maxLines: maxHeldLines,
		words: max(1, (len(t.followers)+63)/64), last: make([]int64, len(t.followers)),
	}
}

// grow adds a file.
func (c *collapser) grow() {
	c.last = append(c.last, 0)
	if len(c.last) <= 64*c.words {
		return
	}
	var sets []uint64
	for set := range slices.Chunk(c.sets, c.words) {
		sets = append(append(sets, set...), 0)
	}
	c.sets = sets
	c.words++
	c.maxLines = min(c.maxLines, maxHeldSets/c.words)
}

// copyUnits takes whole units of a file.
func (c *collapser) copyUnits(f *follower, b []byte) {
	due := time.Now().Add(c.delay)
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b) // updates of a progress bar
		}
		unit := b[:n]
		b = b[n:]
		if f.shown > 0 || len(unit) > maxCollapsed || unit[len(unit)-1] != '\n' || bytes.IndexByte(unit, '\r') >= 0 {
			c.settle(f.index, due)
			c.flushTo(c.last[f.index])
			c.t.writeUnits(f, unit)
			continue
		}
		c.add(f, unit)
	}
	c.settle(f.index, due)
	c.expire(due.Add(-c.delay))
}

// add takes a line of a file, which joins one or waits for one that does.
func (c *collapser) add(f *follower, text []byte) {
	c.t.held.Add(int64(len(text)))
	hash := maphash.Bytes(c.seed, text)
	at := c.find(c.last[f.index], hash, text)
	if at == 0 {
		c.own = append(c.own, line{text, hash})
		return
	}
	h := c.at(at)
	for _, l := range c.own {
		h.before = append(append(h.before, f.prefix...), l.text...)
		h.raw += len(l.text)
		c.extra += len(f.prefix) + len(l.text)
	}
	c.own = c.own[:0]
	c.join(f.index, at)
}

// settle puts the lines of a file that have found none to join at the end of the queue.
func (c *collapser) settle(file int, due time.Time) {
	for _, l := range c.own {
		for c.len() > 0 && (c.len() >= c.maxLines || len(c.text)-c.queue[c.head].from+c.extra+len(l.text) > c.maxBytes) {
			c.emit()
		}
		c.join(file, c.push(l.hash, l.text, due))
	}
	c.own = c.own[:0]
}

func (c *collapser) join(file int, at int64) {
	c.set(at)[file/64] |= 1 << (file % 64)
	c.last[file] = at
}

func (c *collapser) len() int                { return len(c.queue) - c.head }
func (c *collapser) at(position int64) *held { return &c.queue[c.head+int(position-c.first)] }
func (c *collapser) set(position int64) []uint64 {
	i := (c.head + int(position-c.first)) * c.words
	return c.sets[i : i+c.words]
}

func (c *collapser) chain(hash uint64) *chain { return &c.index[hash%uint64(len(c.index))] }

// find returns the position of the first such line behind one, or 0.
func (c *collapser) find(behind int64, hash uint64, line []byte) int64 {
	same := func(h *held) bool { return h.hash == hash && bytes.Equal(c.text[h.from:h.to], line) }
	// Most often the files write the same lines in the same order.
	if next := max(behind+1, c.first); next < c.first+int64(c.len()) && same(c.at(next)) {
		return next
	}
	if c.index == nil {
		c.index = make([]chain, c.maxLines)
	}
	at := c.chain(hash).first
	for range maxSteps {
		if at == 0 {
			break
		}
		h := c.at(at)
		if at > behind && same(h) {
			return at
		}
		at = h.next
	}
	return 0
}

// push appends a line and returns its position.
func (c *collapser) push(hash uint64, line []byte, due time.Time) int64 {
	from := len(c.text)
	c.text = append(c.text, line...)
	at := c.first + int64(c.len())
	c.queue = append(c.queue, held{from: from, to: len(c.text), hash: hash, due: due})
	for range c.words {
		c.sets = append(c.sets, 0)
	}
	chain := c.chain(hash)
	if chain.first == 0 {
		chain.first = at
	} else {
		c.at(chain.last).next = at
	}
	chain.last = at
	return at
}

// expire writes the lines that nothing can join any more, and those whose time
// is over.
func (c *collapser) expire(now time.Time) {
	passed := int64(0)
	if !c.grows {
		passed = slices.Min(c.last)
	}
	for c.len() > 0 && (c.first <= passed || !now.Before(c.queue[c.head].due)) {
		c.emit()
	}
	c.flush()
}

// flushTo writes the lines up to a position.
func (c *collapser) flushTo(position int64) {
	for c.len() > 0 && c.first <= position {
		c.emit()
	}
	c.flush()
}

// wait returns how long the head of the queue waits yet, never if there is none.
func (c *collapser) wait(now time.Time) time.Duration {
	if c.len() == 0 {
		if cap(c.text) > longUnit { // a flood is over
			c.text, c.sets, c.queue, c.index, c.out = nil, nil, nil, nil, nil
		}
		return never
	}
	return max(c.queue[c.head].due.Sub(now), time.Microsecond)
}

// emit moves the head of the queue to out.
func (c *collapser) emit() {
	h, set := c.queue[c.head], c.set(c.first)
	c.out = append(c.out, h.before...)
	c.raw += int64(h.raw)
	c.extra -= len(h.before)
	c.out = append(c.out, c.prefix.of(set, c.t.followers)...)
	c.out = append(c.out, c.text[h.from:h.to]...)
	for _, w := range set {
		c.raw += int64(bits.OnesCount64(w) * (h.to - h.from))
	}
	c.chain(h.hash).first = h.next // it was the oldest of its chain
	c.head++
	c.first++
	c.compact()
	if len(c.out) >= flushSize {
		c.flush()
	}
}

// compact gives back the room of what has left the queue.
func (c *collapser) compact() {
	if c.len() > 0 && c.head < len(c.queue)/2 {
		return
	}
	cut := len(c.text)
	if c.len() > 0 {
		cut = c.queue[c.head].from
	}
	c.text = slices.Delete(c.text, 0, cut)
	c.sets = slices.Delete(c.sets, 0, c.head*c.words)
	c.queue = slices.Delete(c.queue, 0, c.head)
	for i := range c.queue {
		c.queue[i].from -= cut
		c.queue[i].to -= cut
	}
	c.head = 0
}

// flush writes what has left the queue.
func (c *collapser) flush() {
	if len(c.out) == 0 {
		return
	}
	c.t.held.Add(-c.raw)
	if !c.t.abandoned.Load() {
		lost := c.t.cfg.to.put(c, c.out, 0)
		// A lost byte of the console is one of each worker that wrote it.
		c.t.lose((int64(lost)*c.raw+int64(len(c.out))-1)/int64(len(c.out)), c.raw)
	}
	c.out, c.raw = c.out[:0], 0
}
