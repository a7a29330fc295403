package logs

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// blockSize is how much of a file is read at once, flushSize how much
	// output is collected before it is written. They bound memory, not lines.
	blockSize = 256 << 10
	flushSize = 256 << 10
	// longUnit is the length from which a begun line is not read again when
	// more of it arrives; at its end it is copied from the file piece by piece.
	longUnit = 64 << 10
	// previewDelay is how long a begun line may stay silent before a terminal
	// shows what there is of it, a prompt for example.
	previewDelay = 100 * time.Millisecond
	// pollInterval is how often files are looked at where the system does not
	// tell of changes.
	pollInterval = 10 * time.Millisecond
	never        = time.Duration(math.MaxInt64)
)

// A tailConfig says which files a tail follows, and where to.
type tailConfig struct {
	files    map[int]string // by local rank; they need not exist yet
	prefixes map[int]string // by local rank, put before each line
	// containing selects the lines that hold one of these strings. Empty
	// selects all.
	containing []string
	// collapse is how long a line waits at most for the same line of other
	// files, to be copied once, with the prefix that collapsedPrefix returns for
	// their local ranks (in ascending order, two at least). 0 means that nothing
	// waits. Lines are the same when all their bytes are. Updates of progress bars
	// and lines of more than 4 KiB do not wait. Not with containing.
	collapse        time.Duration
	collapsedPrefix func(localRanks []int) string
	// whole means that a line with carriage returns is one, with one prefix.
	whole bool
	// to gets the lines, always whole ones and as many as there are with one
	// write, except that a line of more than 64 KiB may come in pieces. After an
	// error the lines of that write are lost, and the next ones are tried again.
	to   *console
	open func(path string) (*os.File, fs.FileInfo, error)
	log  *slog.Logger
}

// A tail follows files while they grow and copies their lines to one console.
//
// A line is copied once its newline is there, or once the tail was stopped; where
// it lacks its newline then it gets one. In a line with carriage returns (a
// progress bar) each update counts as a line of its own, with its own prefix,
// and the carriage return stays; it is ended by a newline before another
// file's line follows. Bytes are otherwise copied as they are. A file may be emptied
// meanwhile: see source. Memory use does not depend on how long lines are.
//
// The goroutine of run owns what is below held, the followers and what they
// hold, and the rest does not change. Once over has ended, run copies what the files hold at that
// moment and closes done. Who cannot wait for that sets abandoned; from then on run writes
// and counts nothing.
//
// Source: TailLog in torch/distributed/elastic/multiprocessing/tail_log.py.
type tail struct {
	cfg       tailConfig
	followers []*follower
	needles   [][]byte        // containing
	watcher   *watcher        // set before run
	over      context.Context // the same; ends when the tail is to stop

	wake      chan struct{} // a file has changed; has room for one
	done      chan struct{} // closed when run has returned
	abandoned atomic.Bool   // nothing may be written any more
	lost      atomic.Int64  // bytes, as Stats has them
	held      atomic.Int64  // bytes that the collapser holds

	collapser *collapser // nil: lines are copied at once
	in, out   []byte     // what is read and what is to be written; nil until needed
	timer     *time.Timer
	polling   bool // the system does not tell of a file's changes
}

func newTail(cfg tailConfig) *tail {
	t := &tail{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{})}
	for _, s := range cfg.containing {
		t.needles = append(t.needles, []byte(s))
	}
	for i, r := range slices.Sorted(maps.Keys(cfg.files)) {
		t.followers = append(t.followers, &follower{t: t, localRank: r, index: i, limit: -1, prefix: []byte(cfg.prefixes[r]),
			watched: watched{wake: t.wake, src: source{path: cfg.files[r], open: cfg.open}}})
	}
	if cfg.collapse > 0 && len(t.followers) > 1 && len(t.needles) == 0 {
		t.collapser = newCollapser(t, cfg.collapse, cfg.collapsedPrefix)
	}
	return t
}

// wait waits until run has returned after over has ended, or ctx ends because the
// console is stuck. What is left then is counted as lost.
func (t *tail) wait(ctx context.Context) error {
	err := await(ctx, t.done)
	if err == nil {
		return nil
	}
	t.abandoned.Store(true)
	left := t.held.Load()
	for _, f := range t.followers {
		if fi, err := os.Stat(f.src.path); err == nil {
			left += max(fi.Size()-f.start.Load(), 0)
		}
	}
	t.lost.Add(left)
	return fmt.Errorf("%d bytes of output not written in time: %w", left, err)
}

// await waits until done is closed. It returns ctx's cause if that ends before.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
	case <-ctx.Done():
	}
	select {
	case <-done:
		return nil
	default:
		return context.Cause(ctx)
	}
}

func (t *tail) run() {
	defer close(t.done)
	defer func() {
		for _, f := range t.followers {
			f.src.close()
		}
	}()
	t.timer = time.NewTimer(never)
	var p pace
	for t.over.Err() == nil && !t.cfg.to.closed.Load() {
		copied, more := t.round()
		if t.collapser != nil {
			t.collapser.expire(time.Now())
		}
		if more {
			continue
		}
		if !copied {
			p.still()
		} else if d := p.moved(time.Now()); d > 0 {
			t.pause(d, nil)
			continue
		}
		if !t.arm() {
			t.pause(t.preview(), t.wake)
		}
	}
	<-t.over.Done()
	t.finish()
}

// pause waits until wake is sent to, over ends, or d has passed.
func (t *tail) pause(d time.Duration, wake <-chan struct{}) {
	t.timer.Reset(d)
	select {
	case <-wake:
	case <-t.timer.C:
	case <-t.over.Done():
	}
}

// round copies at most a block of each file that may have grown, in turn.
func (t *tail) round() (copied, more bool) {
	for _, f := range t.followers {
		if f.armed && !f.fired.Load() {
			continue
		}
		n, full := f.step()
		copied = copied || n
		more = more || full
	}
	return copied, more
}

// arm makes each file's next change wake the tail. It returns true when a file
// may have changed before.
func (t *tail) arm() (again bool) {
	t.polling = false
	for _, f := range t.followers {
		again = t.watcher.arm(&f.watched, &t.polling) || again
	}
	return again
}

// preview shows what a terminal should see of begun lines that have been silent
// for a while. It returns after how long to look again.
func (t *tail) preview() (next time.Duration) {
	next = never
	if t.polling {
		next = pollInterval
	}
	if t.collapser != nil {
		next = min(next, t.collapser.wait(time.Now()))
	}
	if !t.cfg.to.terminal || len(t.needles) > 0 {
		return next
	}
	for _, f := range t.followers {
		if f.scanned == f.start.Load() || f.grown.IsZero() {
			continue
		}
		if wait := previewDelay - time.Since(f.grown); wait > 0 {
			next = min(next, wait)
			continue
		}
		f.preview()
		f.grown = time.Time{}
	}
	return next
}

// finish copies what the files hold now, to the last byte.
func (t *tail) finish() {
	for _, f := range t.followers {
		f.limit = 0
		if f.open() {
			if fi, err := f.src.live.Stat(); err == nil {
				f.limit = fi.Size()
			}
		}
		f.armed = false
	}
	for more := true; more && !t.useless(); {
		_, more = t.round()
	}
	if t.collapser != nil && !t.useless() {
		t.collapser.flushTo(math.MaxInt64)
	}
	left := t.held.Load()
	for _, f := range t.followers {
		if !t.useless() {
			f.last()
		}
		left += max(f.limit-f.start.Load(), 0)
	}
	t.lose(left, left)
}

// useless reports whether nothing more can be written.
func (t *tail) useless() bool { return t.abandoned.Load() || t.cfg.to.closed.Load() }

// copyUnits copies whole units.
func (t *tail) copyUnits(f *follower, b []byte) {
	if t.collapser != nil {
		t.collapser.copyUnits(f, b)
		return
	}
	t.writeUnits(f, b)
}

// writeUnits writes whole units that pass the filter.
func (t *tail) writeUnits(f *follower, b []byte) {
	if !t.matches(b) {
		return
	}
	plain := t.cfg.whole || len(t.needles) == 0 && b[len(b)-1] == '\n' && bytes.IndexByte(b, '\r') < 0
	out, from := t.out[:0], 0
	for at := 0; at < len(b); {
		if plain {
			n := bytes.IndexByte(b[at:], '\n') + 1
			out = append(out, f.prefix...)
			out = append(out, b[at:at+n]...)
			at += n
		} else {
			unit := b[at : at+unitLen(b[at:])]
			if t.matches(unit) {
				out = appendUnit(out, f.prefix, unit)
			}
			at += len(unit)
		}
		if len(out) >= flushSize || at == len(b) {
			t.put(f, out, at-from)
			out, from = out[:0], at
		}
	}
	t.out = out
}

// piece copies some of what f has: what continues the line that it has begun, whole lines, and the
// beginning of another one. A line that another's has come into begins again, with its prefix.
func (t *tail) piece(f *follower, b []byte) {
	if f.begun && len(b) > 0 && t.cfg.to.isOpen(f) {
		n := bytes.IndexByte(b, '\n') + 1
		if f.begun = n == 0; f.begun {
			n = len(b)
		}
		t.put(f, b[:n], n)
		b = b[n:]
	}
	if n := bytes.LastIndexByte(b, '\n') + 1; n > 0 {
		t.copyUnits(f, b[:n])
		f.begun, b = false, b[n:]
	}
	if len(b) > 0 {
		t.flushBefore(f)
		t.put(f, append(append([]byte(nil), f.prefix...), b...), len(b))
		f.begun = true
	}
}

// endLine ends the line that f has begun.
func (t *tail) endLine(f *follower) {
	if f.begun {
		t.cfg.to.leave(f, true)
		f.begun = false
	}
}

// put writes out, which is what became of some bytes of f's file.
func (t *tail) put(f *follower, out []byte, bytes int) {
	if t.abandoned.Load() || len(out) == 0 {
		return
	}
	lost := t.cfg.to.put(f, out, f.shown)
	f.shown = 0
	t.lose(int64(lost), int64(bytes))
}

// lose counts lost bytes, of some that workers wrote.
func (t *tail) lose(lost, of int64) {
	if !t.abandoned.Load() { // else wait counts them
		t.lost.Add(min(lost, of))
	}
}

// matches reports whether b holds what the tail selects.
func (t *tail) matches(b []byte) bool {
	return len(t.needles) == 0 || slices.ContainsFunc(t.needles, func(s []byte) bool { return bytes.Contains(b, s) })
}

// copyLong copies one unit that need not fit into memory.
func (t *tail) copyLong(f *follower, from, to int64, last bool) {
	t.flushBefore(f)
	if !t.matchesLong(f, from, to) {
		return
	}
	c := t.cfg.to
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
	ended := false
	bytes, lost := int64(0), 0
	for at := from; at < to && !t.abandoned.Load(); {
		n := f.reread(t.in[:min(int64(len(t.in)), to-at)], at)
		if n == 0 {
			break // truncated meanwhile
		}
		out := t.in[:n]
		if at == from {
			out = appendUnit(t.out[:0], f.prefix, out)
		}
		ended = out[len(out)-1] == '\n'
		lost += len(out) - c.write(out)
		at += int64(n)
		bytes += int64(n)
	}
	switch {
	case ended:
	case last:
		c.write([]byte{'\n'})
	case c.open == nil:
		c.open = f
	}
	t.lose(int64(lost), bytes)
}

// flushBefore lets what the file has written before come first.
func (t *tail) flushBefore(f *follower) {
	if t.collapser != nil {
		t.collapser.flushTo(t.collapser.last[f.index])
	}
}

// matchesLong is matches for a piece of a file.
func (t *tail) matchesLong(f *follower, from, to int64) bool {
	overlap := 0 // of two blocks: so much of a needle may be in the first
	for _, s := range t.needles {
		overlap = min(max(overlap, len(s)-1), blockSize/2)
	}
	for n := 0; len(t.needles) > 0 && from < to; from += int64(n - overlap) {
		n = f.reread(t.in[:min(int64(len(t.in)), to-from)], from)
		if t.matches(t.in[:n]) {
			return true
		}
		if n <= overlap || from+int64(n) >= to {
			return false
		}
	}
	return len(t.needles) == 0
}
