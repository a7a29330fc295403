package postmortem

import (
	"bytes"
	"errors"
	"io"
)

// maxPending is how much of a line without end is kept before it is written in
// pieces.
const maxPending = 64 << 10

// A printer writes the lines of several streams, each with its prefix, byte for
// byte and never mixed.
type printer struct {
	w   io.Writer
	buf []byte
	out []byte
	// mid is the feed whose line was begun on w; nil at the beginning of a line.
	mid *feed
}

// A feed is one stream that a printer writes.
type feed struct {
	stream  Stream
	prefix  []byte
	from    io.ReadCloser
	pending []byte // a line whose end has not come
	round   int    // of PrintFrames: which it is of
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
		p.out = append(p.out, f.prefix...)
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
	p := &printer{w: w}
	var errs []error
	for _, s := range streams {
		from, err := s.Open(lines)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f := &feed{stream: s, prefix: []byte(prefix(s)), from: from}
		err = errors.Join(p.drain(f), p.close(f))
		if _, ours := errors.AsType[*writeError](err); ours {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
