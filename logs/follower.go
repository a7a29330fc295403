package logs

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"
)

// A follower is one file of a tail. Only the tail's goroutine touches it, but for
// start, which others may read, and watch.fired, which the watcher sets.
//
// What is between start and scanned is the beginning of a unit whose end has not
// been seen. It is not kept in memory but read again.
type follower struct {
	t         *tail
	localRank int
	index     int // in the tail's followers
	src       source
	prefix    []byte
	watch     watch

	start   atomic.Int64 // what is before was copied or passed over
	scanned int64
	limit   int64     // once the tail is stopped: how far to read; else -1
	shown   int       // bytes of the begun unit's output that a terminal shows already
	grown   time.Time // when scanned last changed
	armed   bool      // the next change fires watch; the file need not be looked at before
	begun   bool      // by piece: its line goes on
	failed  bool      // it cannot be read, and the log has said so
}

// open opens the file if it exists.
func (f *follower) open() bool {
	if f.failed {
		return f.src.live != nil
	}
	err := f.src.begin()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.fail("cannot follow a log file", err)
	}
	return err == nil
}

// fail says once why the file is not followed.
func (f *follower) fail(what string, err error) {
	if !f.failed {
		f.failed = true
		f.t.log.Warn(what, "local_rank", f.localRank, "file", f.src.path, "error", err)
	}
}

// arm asks to be told of the file's next change, or of the next file in the
// directory where it will be. It returns false where that cannot be had.
func (f *follower) arm() bool {
	if f.src.live == nil {
		return f.t.watcher.arm(&f.watch, filepath.Dir(f.src.path), true)
	}
	// Through the descriptor, since the path may name another file by now.
	link := "/proc/self/fd/" + strconv.Itoa(int(f.src.live.Fd()))
	return f.t.watcher.arm(&f.watch, link, false) || f.t.watcher.arm(&f.watch, f.src.path, false)
}

// changed reports whether there is something to do.
func (f *follower) changed() bool {
	if f.src.live == nil {
		return f.open()
	}
	return f.src.changed()
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
	f.t.to.disown(f)
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
	t.buffers()
	from := f.start.Load()
	long := f.scanned-from > longUnit
	if long {
		from = f.scanned
	}
	n, emptied, err := f.src.next(t.in, from)
	switch {
	case err != nil:
		f.fail("cannot read a log file", err)
		return false, false
	case emptied:
		f.restart()
		return true, true
	case f.limit >= 0 && f.src.copy == nil:
		n = int(max(min(int64(n), f.limit-from), 0))
	}
	b := t.in[:n]
	if from+int64(n) <= f.scanned {
		return false, false
	}
	f.grown = time.Now()
	if long {
		f.stepLong(b)
		return true, true
	}
	end := unitsEnd(b, int(f.scanned-from))
	f.scanned = from + int64(len(b))
	if end > 0 {
		t.copyUnits(f, b[:end])
		f.advance(from + int64(end))
	} else if len(b) > longUnit {
		// From here on carriage returns are searched only once.
		f.scanned = from + int64(max(len(bytes.TrimRight(b, "\r")), longUnit+1))
	}
	return true, len(b) == len(t.in) || f.src.copy != nil
}

// stepLong goes on in a long unit with b, which is what follows scanned.
func (f *follower) stepLong(b []byte) {
	end, scanned := longUnitEnd(b)
	if end < 0 {
		if scanned == 0 && len(b) == blockSize {
			scanned = len(b)
		}
		f.scanned += int64(scanned)
		return
	}
	to := f.scanned + int64(end)
	f.t.copyLong(f, f.start.Load(), to, false)
	f.advance(to)
	f.scanned = to
}

// reread reads at an offset what step has seen before, and returns how much there was.
func (f *follower) reread(b []byte, from int64) int {
	n, err := pread(f.src.reading(), b, from)
	if err != nil {
		f.fail("cannot read a log file", err)
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
	t.to.put(f, t.out, f.shown)
	f.shown = len(t.out)
}

// last copies the unit that has no end, and ends it.
func (f *follower) last() {
	t := f.t
	start := f.start.Load()
	rest := f.scanned - start
	switch {
	case rest > longUnit:
		t.copyLong(f, start, f.scanned, true)
		f.advance(f.scanned)
	case rest > 0:
		b := t.in[:f.reread(t.in[:rest], start)]
		if len(b) > 0 && t.matches(b) {
			t.put(f, append(appendUnit(t.out[:0], f.prefix, b), '\n'), len(b), 1)
		}
		f.advance(f.scanned)
	}
	t.to.endOf(f)
}
