package postmortem

import (
	"cmp"
	"errors"
	"io"
	"slices"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/logs"
)

// blockSize is how much of a file is read at once, in bytes, and of how much a line without end is
// printed in pieces.
const blockSize = 64 << 10

// Printing says how lines are printed.
type Printing struct {
	Writer   io.Writer
	Prefix   func(ranks string, stderr bool) string // of a line of one rank, or of several: "0-2,5"
	Collapse bool                                   // equal lines of several ranks are printed once
}

// A printer writes the lines of several streams.
type printer struct {
	Printing
	*logs.Printer

	newest *number // of the attempts that have begun
	buf    []byte
}

func newPrinter(cfg Printing, live bool) *printer {
	p := logs.PrinterConfig{Prefix: cfg.Prefix, Collapse: cfg.Collapse, Live: live}
	return &printer{Printing: cfg, Printer: logs.NewPrinter(cfg.Writer, p), buf: make([]byte, blockSize)}
}

// begin notes that an attempt has begun, and reports whether that is new. Lines that come from
// earlier attempts say from now on from which.
func (p *printer) begin(n number) bool {
	if p.newest != nil && n.compare(*p.newest) <= 0 {
		return false
	}
	p.newest = &n
	_ = p.Flush() // Put has the error, too
	return true
}

// put writes some of what a rank has written in an attempt.
func (p *printer) put(rank int, n number, attempt string, c *logs.Chunk) error {
	late := p.newest != nil && n.compare(*p.newest) < 0
	return p.Put(rank, c.Stderr, attempt, late, c.Data)
}

// A feed is one stream that a printer writes.
type feed struct {
	*logs.Stream
	path    string
	rank    int
	number  number // of its attempt
	attempt string // its name
	ended   bool   // the last that was written of it was the end of a line
}

// open opens a stream at its last lines, or all of them if lines is negative.
func (p *printer) open(s *Stream, lines int, n number, attempt string) (*feed, error) {
	from, err := logs.OpenStream(s.Path, lines)
	if err != nil {
		return nil, err
	}
	from.Stderr = s.Stderr
	return &feed{Stream: from, path: s.Path, rank: s.rank, number: n, attempt: attempt}, nil
}

func (p *printer) emit(f *feed) func(*logs.Chunk) error {
	return func(c *logs.Chunk) error {
		f.ended = c.Data[len(c.Data)-1] == '\n'
		return p.put(f.rank, f.number, f.attempt, c)
	}
}

// drain writes what feeds have: one after the other, or with Collapse in turn, so that equal lines
// meet. It calls fail for those that cannot be read.
func (p *printer) drain(feeds []*feed, fail func(*feed, error)) error {
	for again := true; again; {
		again = false
		for _, f := range feeds {
			for {
				moved, err := f.Read(p.buf, p.emit(f))
				if err != nil {
					return err
				}
				if f.Err() != nil {
					fail(f, f.Err())
				}
				if !moved {
					break
				}
				if p.Collapse && f.ended {
					again = true
					break
				}
			}
		}
	}
	return nil
}

// close writes what feeds have left and ends their lines.
func (p *printer) close(feeds []*feed) error {
	for _, f := range feeds {
		_ = f.Finish(p.emit(f)) // Flush has the error, too
		_ = p.End(f.rank, f.Stderr, f.attempt)
		f.Close()
	}
	return p.Flush()
}

// Print writes streams one after another, or with Collapse together: the last lines of each, or all
// if lines is negative. A last line without end gets one. A stream that cannot be read to
// its end does not keep the others from being written.
func Print(cfg Printing, streams []Stream, lines int) error {
	p := newPrinter(cfg, false)
	together := 1
	if cfg.Collapse {
		together = max(1, len(streams))
	}
	var errs []error
	for some := range slices.Chunk(streams, together) {
		var feeds []*feed
		for _, s := range some {
			f, err := p.open(&s, lines, number{}, "")
			if err != nil {
				errs = append(errs, err)
				continue
			}
			feeds = append(feeds, f)
		}
		err := p.drain(feeds, func(_ *feed, err error) { errs = append(errs, err) })
		if err = cmp.Or(err, p.close(feeds)); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// A Stream is what one worker has written to its stdout or stderr.
type Stream struct {
	Path   string // of the file
	Stderr bool
	rank   int // as lines are marked with it
}

// A Selection says which streams of an attempt are wanted.
type Selection struct {
	Stdout, Stderr bool
	Ranks          text.RankSet // nil: all
	LocalRanks     bool         // ranks are local ones, as they are where the global ones are not known
}

// Rank is how a worker is called: by its local rank if that is wanted, or all that is known.
func (s *Selection) Rank(w *Worker) int {
	if s.LocalRanks || w.Rank < 0 {
		return w.LocalRank
	}
	return w.Rank
}

// Streams returns the streams of an attempt that are wanted and have files, by local rank.
func (a *Attempt) Streams(s Selection) (all []Stream) {
	for _, w := range a.Workers {
		rank := s.Rank(&w)
		if !s.Ranks.Has(rank) {
			continue
		}
		if w.Stdout != "" && s.Stdout {
			all = append(all, Stream{w.Stdout, false, rank})
		}
		if w.Stderr != "" && s.Stderr {
			all = append(all, Stream{w.Stderr, true, rank})
		}
	}
	return all
}
