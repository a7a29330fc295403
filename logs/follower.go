package logs

import (
	"bytes"
	"errors"
	"io/fs"
	"sync/atomic"
	"time"
)

// A follower is one file of a tail. Only the tail's goroutine touches it, but for
// start, which others may read.
//
// What is between start and scanned is the beginning of a unit whose end has not
// been seen. It is not kept in memory but read again.
type follower struct {
	watched
	t         *tail
	localRank int
	index     int // in the tail's followers
	prefix    []byte

	start   atomic.Int64 // what is before was copied or passed over
	scanned int64
	limit   int64     // once the tail is stopped: how far to read; else -1
	shown   int       // bytes of the begun unit's output that a terminal shows already
	grown   time.Time // when scanned last changed
	begun   bool      // by piece: its line continues
	attempt string    // of a Printer: that of its begun line
}

// open opens the file if it exists.
func (f *follower) open() bool {
	if f.failed {
		return f.src.live != nil
	}
	err := f.src.begin()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.fail(f.t.cfg.log, "cannot follow a log file", f.localRank, err)
	}
	return err == nil
}

// restart begins again, since the file was emptied. What its copy has of a begun unit is copied.
func (f *follower) restart() {
	if f.src.copy != nil {
		f.t.flushBefore(f)
		f.last()
	}
	f.src.rewind()
	f.advance(0)
	f.scanned = 0
	f.t.cfg.to.leave(f, false)
}

// advance moves start. What a terminal showed of the unit there is history.
func (f *follower) advance(to int64) {
	f.start.Store(to)
	f.shown = 0
}

// step reads on and copies the units that are whole. It reports whether the file
// has grown, and whether there may be more to read at once.
func (f *follower) step() (grown, more bool) {
	if !f.open() {
		return false, false
	}
	t := f.t
	if t.in == nil {
		t.in, t.out = make([]byte, blockSize), make([]byte, 0, flushSize+blockSize)
	}
	start := f.start.Load()
	from := start
	long := f.scanned-start > longUnit
	if long {
		from = f.scanned - 1 // that byte is no carriage return, so no unit begins with it
	}
	n, emptied, err := f.src.next(t.in, from)
	switch {
	case err != nil:
		f.fail(t.cfg.log, "cannot read a log file", f.localRank, err)
		return false, false
	case emptied:
		f.restart()
		return true, true
	case f.limit >= 0 && f.src.copy == nil:
		n = int(max(min(int64(n), f.limit-from), 0))
	}
	b, scanned := t.in[:n], f.scanned
	if from+int64(n) <= scanned {
		return false, false
	}
	f.grown = time.Now()
	full := n == len(t.in)
	f.scanned = from + int64(n)
	end := unitsEnd(b, int(scanned-from))
	switch {
	case long && end > 0:
		f.scanned = from + int64(unitLen(b[:end]))
		t.copyLong(f, start, f.scanned, false)
		f.advance(f.scanned)
		return true, true
	case end > 0:
		t.copyUnits(f, b[:end])
		f.advance(from + int64(end))
	case long || n > longUnit: // carriage returns at the end may belong to a newline
		f.scanned = max(scanned, start+longUnit+1, from+int64(len(bytes.TrimRight(b, "\r"))))
		if full && f.scanned == scanned {
			f.scanned = from + int64(n)
		}
	}
	return true, full || f.src.copy != nil
}

// reread reads at an offset what step has seen before, and returns how much there was.
func (f *follower) reread(b []byte, from int64) int {
	n, err := pread(f.src.reading(), b, from)
	if err != nil {
		f.fail(f.t.cfg.log, "cannot read a log file", f.localRank, err)
	}
	return n
}

// preview shows what there is of a begun unit.
func (f *follower) preview() {
	t := f.t
	rest := f.scanned - f.start.Load()
	if rest > longUnit {
		return
	}
	b := bytes.TrimRight(t.in[:f.reread(t.in[:rest], f.start.Load())], "\r")
	if len(b) == 0 {
		return
	}
	t.flushBefore(f)
	t.out = appendUnit(t.out[:0], f.prefix, b)
	t.cfg.to.put(f, t.out, f.shown)
	f.shown = len(t.out)
}

// last copies the unit that has no end, and ends it.
func (f *follower) last() {
	t := f.t
	start := f.start.Load()
	if rest := f.scanned - start; rest > longUnit {
		t.copyLong(f, start, f.scanned, true)
	} else if rest > 0 {
		b := t.in[:f.reread(t.in[:rest], start)]
		if len(b) > 0 && t.matches(b) {
			t.put(f, append(appendUnit(t.out[:0], f.prefix, b), '\n'), len(b))
		}
	}
	f.advance(f.scanned)
	t.cfg.to.leave(f, true)
}
