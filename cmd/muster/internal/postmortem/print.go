package postmortem

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
)

// maxPending is how much of a line without end is kept before it is written in
// pieces.
const maxPending = 64 << 10

// A printer writes the lines of several streams, each with its prefix, byte for
// byte and never mixed.
type printer struct {
	*output
	buf []byte
}

// An output is where several printers write.
type output struct {
	w io.Writer

	mu  sync.Mutex // guards the rest
	out []byte
	// mid is the feed whose line was begun on w; nil at the beginning of a line.
	mid    *feed
	newest *number // of the attempts that have begun
}

// begin notes that an attempt has begun, and calls tell if nobody has noted that before. What
// comes of earlier ones says from now on of which it is.
func (p *output) begin(n number, tell func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == nil || n.compare(*p.newest) > 0 {
		p.newest = &n
		tell()
	}
}

// A feed is one stream that a printer writes.
type feed struct {
	stream  Stream
	prefix  string
	from    io.ReadCloser
	pending []byte // a line whose end has not come
	number  number // of its attempt
	attempt string // its name
}

// late is the prefix of a line that comes after another attempt has begun.
func (f *feed) late() string {
	if begin, ok := strings.CutSuffix(f.prefix, "]: "); ok {
		return begin + " " + f.attempt + "]: "
	}
	return f.prefix + "[" + f.attempt + "]: "
}

// drain writes what a feed has, whole lines.
func (p *printer) drain(f *feed) error {
	if p.buf == nil {
		p.buf = make([]byte, blockSize)
	}
	for {
		n, err := f.from.Read(p.buf)
		if n > 0 {
			if err := p.put(f, p.buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// put takes in what was read of a feed, and writes the lines that have ended.
func (p *printer) put(f *feed, text []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range bytes.Lines(text) {
		f.pending = append(f.pending, line...)
		whole := line[len(line)-1] == '\n'
		if whole || len(f.pending) > maxPending {
			p.piece(f, whole)
		}
	}
	return p.flush()
}

// piece puts out what is pending of a feed: a whole line, or a part of one, which may go
// on with the one before.
func (p *printer) piece(f *feed, whole bool) {
	if p.mid != f {
		p.end()
		prefix := f.prefix
		if p.newest != nil && f.number.compare(*p.newest) < 0 {
			prefix = f.late()
		}
		p.out = append(p.out, prefix...)
		p.mid = f
	}
	p.out = append(p.out, f.pending...)
	f.pending = f.pending[:0]
	if whole {
		p.mid = nil
	}
}

// end ends the line that was begun.
func (p *printer) end() {
	if p.mid != nil {
		p.out = append(p.out, '\n')
		p.mid = nil
	}
}

// close writes what a feed has left and ends its line.
func (p *printer) close(f *feed) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(f.pending) > 0 {
		p.piece(f, false)
	}
	if p.mid == f {
		p.end()
	}
	return errors.Join(p.flush(), f.from.Close())
}

func (p *printer) flush() error {
	if len(p.out) == 0 {
		return nil
	}
	_, err := p.w.Write(p.out)
	if p.out = p.out[:0]; err != nil {
		return &writeError{err}
	}
	return nil
}

// A writeError is one of the writer, not of a file that is read.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// Print writes streams one after another: the last lines of each, or all if lines
// is negative. A last line without end gets one. A stream that cannot be read to
// its end does not keep the others from being written.
func Print(w io.Writer, streams []Stream, prefix func(Stream) string, lines int) error {
	p := &printer{output: &output{w: w}}
	var errs []error
	for _, s := range streams {
		from, err := s.Open(lines)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f := &feed{stream: s, prefix: prefix(s), from: from}
		err = errors.Join(p.drain(f), p.close(f))
		if _, ours := errors.AsType[*writeError](err); ours {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
