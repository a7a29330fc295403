package logs

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
)

const (
	// blockSize is how much of a file is read at once. It bounds memory, not
	// the length of lines.
	blockSize = 256 << 10
	// flushSize is how much prefixed output is collected before it is written.
	flushSize = 256 << 10
)

// buffers holds blocks, so that followers with nothing to do keep no memory.
var buffers = sync.Pool{New: func() any {
	return &buffer{in: make([]byte, blockSize), out: make([]byte, 0, flushSize+blockSize/2)}
}}

type buffer struct{ in, out, match []byte }

// A follower copies the lines of one file, as they are written, to the console
// and to the file of filtered lines.
//
// A line is copied once its end has been seen: start is where the first line not
// copied begins, scanned how far the search for its end has come. What lies
// between is in the file and is not kept in memory.
type follower struct {
	path     string
	prefix   []byte
	console  *console // nil: not copied there
	filtered *console // nil: none
	needles  []string
	logger   *slog.Logger

	finishing chan struct{} // closed when nothing more will be written
	done      chan struct{}
	err       error // once done

	file           *os.File
	start, scanned int64
	copied         atomic.Int64 // start, for others to read
}

// begin starts to follow.
func (f *follower) begin(w *watcher) {
	f.finishing = make(chan struct{})
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		f.err = f.follow(w)
	}()
}

// follow runs until finishing is closed and the end of the file is reached.
func (f *follower) follow(w *watcher) error {
	var err error
	if f.file, err = os.Open(f.path); err != nil {
		return err
	}
	defer f.file.Close()
	watch := w.add(f.path)
	defer watch.remove()
	for {
		// Sampled before reading: what was written before it is read.
		var last bool
		select {
		case <-f.finishing:
			last = true
		default:
		}
		if err := f.copyAvailable(last); err != nil {
			return err
		}
		if last {
			return nil
		}
		// The watch tells of one change after it was armed. What changed before
		// is found by reading once more.
		watch.arm()
		if err := f.copyAvailable(false); err != nil {
			return err
		}
		select {
		case <-watch.changed:
		case <-f.finishing:
		}
	}
}

// copyAvailable copies the whole lines that the file has now; at the end also a
// last line without a newline.
func (f *follower) copyAvailable(last bool) error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size < f.start { // truncated: begin again
		f.start, f.scanned = 0, 0
	}
	if size == f.scanned && !(last && f.start < f.scanned) {
		return nil
	}
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	for {
		more, err := f.copyBlock(b)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	if last && f.start < f.scanned {
		return f.copyLong(b, f.scanned, true)
	}
	return nil
}

// copyBlock reads on and copies the lines that have ended. It returns false at
// the end of the file.
func (f *follower) copyBlock(b *buffer) (more bool, err error) {
	// The begun line is read again with what follows, unless it is long.
	from := f.start
	if f.scanned-f.start > blockSize/2 {
		from = f.scanned
	}
	n, err := f.file.ReadAt(b.in, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if from+int64(n) <= f.scanned {
		return false, nil
	}
	in := b.in[:n]
	fresh := in[f.scanned-from:]
	if from > f.start {
		// The middle of a long line: find its end.
		end := f.lineEnd(fresh)
		if end < 0 {
			f.scanned += int64(len(fresh))
			return true, nil
		}
		if err := f.copyLong(b, f.scanned+int64(end), false); err != nil {
			return false, err
		}
		return true, nil
	}
	end := f.lastLineEnd(fresh)
	if end < 0 {
		f.scanned += int64(len(fresh))
		return true, nil
	}
	whole := in[:int(f.scanned-from)+end]
	f.copyLines(b, whole)
	f.scanned = from + int64(n)
	f.advance(from + int64(len(whole)))
	return true, nil
}

func (f *follower) advance(start int64) {
	f.start = start
	f.scanned = max(f.scanned, start)
	f.copied.Store(start)
}

// On a terminal a carriage return ends a piece of output too, so that a progress
// bar moves. Elsewhere it is a byte like others, within its line.
func (f *follower) carriageReturns() bool { return f.console != nil && f.console.terminal }

func (f *follower) lineEnd(p []byte) int {
	end := bytes.IndexByte(p, '\n') + 1
	if f.carriageReturns() {
		if cr := bytes.IndexByte(p, '\r') + 1; cr > 0 && cr < len(p) && p[cr] != '\n' && (end == 0 || cr < end) {
			end = cr
		}
	}
	if end == 0 {
		return -1
	}
	return end
}

func (f *follower) lastLineEnd(p []byte) int {
	end := bytes.LastIndexByte(p, '\n') + 1
	if f.carriageReturns() {
		// A carriage return at the very end may belong to a \r\n whose other
		// half is still to come; showing it now is right in both cases.
		end = max(end, bytes.LastIndexByte(p, '\r')+1)
	}
	if end == 0 {
		return -1
	}
	return end
}

// copyLines copies whole lines, each behind the prefix.
func (f *follower) copyLines(b *buffer, lines []byte) {
	out, match := b.out[:0], b.match[:0]
	terminal := f.carriageReturns()
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\n') + 1
		if end == 0 {
			end = len(lines)
		}
		line := lines[:end]
		lines = lines[end:]
		if f.filtered != nil && f.matches(line) {
			match = append(append(match, f.prefix...), line...)
			if line[len(line)-1] != '\n' {
				match = append(match, '\n')
			}
		}
		if f.console == nil {
			continue
		}
		if terminal {
			out = f.appendPieces(out, line)
		} else {
			out = append(append(out, f.prefix...), line...)
		}
		if len(out) >= flushSize {
			f.console.writeAll(out)
			out = out[:0]
		}
	}
	if f.console != nil {
		f.console.writeAll(out)
	}
	if f.filtered != nil {
		f.filtered.writeAll(match)
	}
	b.out, b.match = out[:0], match[:0]
	if cap(b.match) > flushSize {
		b.match = nil
	}
}

// appendPieces puts the prefix before every part that a carriage return ends.
func (f *follower) appendPieces(out, line []byte) []byte {
	for len(line) > 0 {
		end := bytes.IndexByte(line, '\r') + 1
		if end == 0 || end < len(line) && line[end] == '\n' {
			end = len(line)
		}
		out = append(append(out, f.prefix...), line[:end]...)
		line = line[end:]
	}
	return out
}

func (f *follower) matches(line []byte) bool {
	for _, needle := range f.needles {
		if bytes.Contains(line, []byte(needle)) {
			return true
		}
	}
	return false
}

// copyLong copies one line, from start to end, that need not fit into memory. If
// it is the last one and unfinished it gets a newline, so that the next worker's
// line begins on a line of its own.
func (f *follower) copyLong(b *buffer, end int64, unfinished bool) error {
	start := f.start
	match := false
	if f.filtered != nil {
		var err error
		if match, err = f.matchesLong(b, start, end); err != nil {
			return err
		}
	}
	copyTo := func(c *console) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.write(f.prefix)
		for at := start; at < end; {
			n, err := f.file.ReadAt(b.in[:min(int64(len(b.in)), end-at)], at)
			if n == 0 {
				if err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				break // truncated meanwhile
			}
			c.write(b.in[:n])
			at += int64(n)
		}
		if unfinished {
			c.write([]byte{'\n'})
		}
		return nil
	}
	var errs []error
	if f.console != nil {
		errs = append(errs, copyTo(f.console))
	}
	if match {
		errs = append(errs, copyTo(f.filtered))
	}
	f.scanned = max(f.scanned, end)
	f.advance(end)
	return errors.Join(errs...)
}

// matchesLong looks for the needles block by block; blocks overlap by the length
// of the longest needle.
func (f *follower) matchesLong(b *buffer, start, end int64) (bool, error) {
	overlap := int64(0)
	for _, needle := range f.needles {
		overlap = max(overlap, int64(len(needle)))
	}
	overlap = min(overlap, blockSize/2)
	for at := start; at < end; {
		n, err := f.file.ReadAt(b.in[:min(int64(len(b.in)), end-at)], at)
		if f.matches(b.in[:n]) {
			return true, nil
		}
		if n == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return false, err
			}
			return false, nil
		}
		if at+int64(n) >= end {
			return false, nil
		}
		at += max(int64(n)-overlap, 1)
	}
	return false, nil
}

// behind returns how much of the file has not been copied.
func (f *follower) behind() int64 {
	info, err := os.Stat(f.path)
	if err != nil {
		return 0
	}
	return max(info.Size()-f.copied.Load(), 0)
}
