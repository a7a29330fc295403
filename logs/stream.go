package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// A Chunk is some of what a worker has written to one of its streams: whole lines, as many as
// there are. Only a line of more than 256 KiB comes in pieces, and the last line may lack its
// newline.
type Chunk struct {
	Worker Worker
	Stderr bool
	Offset int64  // of Data in the stream's file; it begins anew where that was emptied
	Size   int64  // of the file when it was looked at: what is behind Data was written, too
	Data   []byte // valid until emit returns
}

// FollowConfig says what Follow follows. The zero value is nothing.
type FollowConfig struct {
	Stdout, Stderr bool
	Want           func(Worker) bool // nil means every worker
	Lines          int               // of each stream's past, which a Chunk without Data begins; negative means all
	// From is where a stream is to begin instead, in bytes; false means what Lines says. It
	// may be nil.
	From func(w Worker, stderr bool) (offset int64, ok bool)
	Once bool  // only what there is already
	Part *Part // only what is of this part of the Attempt; nil means all
}

// A Stream reads one log file of a worker, in whole lines, also while the worker writes and when the
// file is emptied. Its methods are not for concurrent use.
type Stream struct {
	Chunk                              // Offset is that of pending
	watched                            // by Follow
	placed  bool                       // Follow has found where it begins
	pending []byte                     // the beginning of a line
	limit   func(off int64, n int) int // how many of n bytes at off are wanted
	err     error
}

// OpenStream opens a file at its last lines, or at its beginning if lines is negative. A file that
// is not a regular one is an error, and one that does not exist is fs.ErrNotExist.
func OpenStream(path string, lines int) (*Stream, error) {
	s := &Stream{limit: func(_ int64, n int) int { return n }}
	s.src = source{path: path, open: safeopen.Open}
	if err := s.begin(lines); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// begin opens the file at its last lines, or at its beginning if lines is negative.
func (s *Stream) begin(lines int) error {
	if err := s.src.begin(); err != nil || lines < 0 {
		return err
	}
	from, err := lastLines(s.src.live, lines)
	if err != nil {
		s.Close()
		return err
	}
	s.seek(from)
	return nil
}

func (s *Stream) seek(to int64) {
	s.src.seek(to)
	s.Offset = s.src.end
}

// Read reads some of the stream into buf, which has the same size each time, and calls emit with
// the whole lines of that. A line that does not fit into buf comes in pieces. It returns false at
// the end, where a later Read returns what was written since, and emit's error.
func (s *Stream) Read(buf []byte, emit func(*Chunk) error) (moved bool, err error) {
	at := s.src.end
	n, emptied, err := s.src.next(buf[copy(buf, s.pending):], at)
	if s.err = err; emptied { // a line that the worker has begun continues at the file's beginning
		err = s.piece(s.pending, emit)
		s.pending = s.pending[:0]
		s.src.rewind()
		s.Offset = 0
		return true, err
	}
	if n = s.limit(at, n); n == 0 {
		return false, nil
	}
	have := buf[:len(s.pending)+n]
	left := len(have)
	if info, err := s.src.reading().Stat(); err == nil {
		left += int(max(0, info.Size()-s.src.end))
	}
	s.Size = s.Offset + int64(s.limit(s.Offset, left))
	end := bytes.LastIndexByte(have, '\n') + 1
	if end == 0 && len(have) == len(buf) {
		end = len(have)
	}
	if err := s.piece(have[:end], emit); err != nil {
		return false, err
	}
	s.pending = append(s.pending[:0], have[end:]...)
	return true, nil
}

// Err is why the last Read could not read; nil at the end.
func (s *Stream) Err() error { return s.err }

// Finish emits the line without an end.
func (s *Stream) Finish(emit func(*Chunk) error) error {
	rest := s.pending
	s.pending = nil
	return s.piece(rest[:s.limit(s.Offset, len(rest))], emit)
}

// Close closes the file.
func (s *Stream) Close() { s.src.close() }

// piece emits some of the stream.
func (s *Stream) piece(data []byte, emit func(*Chunk) error) error {
	if len(data) == 0 {
		return nil
	}
	s.Data = data
	err := emit(&s.Chunk)
	s.Offset += int64(len(data))
	return err
}

// Follow calls emit with what the Attempt's workers have written to files, and with what they
// write from now on. It returns nil when they have ended and all is read, or ctx's or emit's
// error. It may be called at any time and any number of times: a slow emit holds nobody up,
// since what it has not read yet is in the files. emit is called by Follow's goroutine.
func (a *Attempt) Follow(ctx context.Context, cfg FollowConfig, emit func(*Chunk) error) error {
	switch {
	case len(a.workers) == 0:
		return nil
	case cfg.Part == nil:
		cfg.Part = a.Part()
		defer cfg.Part.end()
	}
	f := &streamer{a: a, cfg: cfg, emit: emit, wake: make(chan struct{}, 1)}
	for _, rank := range slices.Sorted(maps.Keys(a.workers)) {
		w := a.workers[rank].Worker
		if now, ok := cfg.Part.rank[rank]; ok {
			w.Rank = now
		}
		if cfg.Want != nil && !cfg.Want(w) {
			continue
		}
		for i, path := range a.workers[rank].sink.paths() {
			if path == "" || i == 0 && !cfg.Stdout || i == 1 && !cfg.Stderr {
				continue
			}
			f.streams = append(f.streams, &Stream{
				Chunk:   Chunk{Worker: w, Stderr: i == 1},
				watched: watched{wake: f.wake, src: source{path: path, open: a.run.open}},
				limit:   func(off int64, n int) int { return cfg.Part.limit(path, off, n) },
			})
		}
	}
	if len(f.streams) == 0 {
		return nil
	}
	f.watcher, f.buf = newWatcher(a.run.log), make([]byte, blockSize)
	defer f.watcher.close()
	defer func() {
		for _, s := range f.streams {
			s.Close()
		}
	}()
	return f.run(ctx)
}

// A streamer is one call of Follow.
type streamer struct {
	a       *Attempt
	cfg     FollowConfig
	emit    func(*Chunk) error
	streams []*Stream
	watcher *watcher
	wake    chan struct{}
	buf     []byte
}

func (f *streamer) run(ctx context.Context) error {
	timer := time.NewTimer(never)
	defer timer.Stop()
	pause := func(d time.Duration, wake <-chan struct{}) {
		timer.Reset(d)
		select {
		case <-wake:
		case <-timer.C:
		case <-f.cfg.Part.over.Done():
		case <-ctx.Done():
		}
	}
	var p pace
	for ctx.Err() == nil {
		over := f.cfg.Once || f.over() // before all is read that came until then
		moved, err := f.round(ctx)
		switch {
		case err != nil:
			return err
		case moved:
			if d := p.moved(time.Now()); d > 0 {
				pause(d, nil)
			}
			continue
		case over:
			for _, s := range f.streams {
				if err := s.Finish(f.emit); err != nil {
					return err
				}
			}
			return nil
		}
		p.still()
		wait, polling, again := never, false, false
		for _, s := range f.streams {
			again = f.watcher.arm(&s.watched, &polling) || again
		}
		if polling {
			wait = pollInterval
		}
		if !again {
			pause(wait, f.wake)
		}
	}
	return context.Cause(ctx)
}

// over reports whether the workers have ended, or the part has.
func (f *streamer) over() bool { return f.cfg.Part.over.Err() != nil }

// round reads some of each stream that may have grown, and emits its whole lines.
func (f *streamer) round(ctx context.Context) (moved bool, err error) {
	for _, s := range f.streams {
		if s.failed || s.armed && !s.fired.Load() && !f.over() {
			continue
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if !s.placed {
			if err := f.place(s); err != nil {
				f.giveUp(s, err)
				continue
			}
			s.placed = true
			if f.cfg.Lines >= 0 { // so that who comes back later, before the first line, knows from where
				s.Data = nil
				if err := f.emit(&s.Chunk); err != nil {
					return false, err
				}
			}
		}
		n, err := s.Read(f.buf, f.emit)
		if err != nil {
			return false, err
		}
		if s.Err() != nil {
			f.giveUp(s, s.Err())
		}
		moved = moved || n
	}
	return moved, nil
}

// place opens a stream where it is to begin.
func (f *streamer) place(s *Stream) error {
	if err := s.begin(f.cfg.Lines); err != nil {
		return err
	}
	at := max(s.Offset, f.cfg.Part.from[s.src.path])
	if f.cfg.From != nil {
		if from, ok := f.cfg.From(s.Worker, s.Stderr); ok {
			at = from
		}
	}
	if at != s.Offset {
		s.seek(at)
	}
	return nil
}

// giveUp says once why a stream is not followed.
func (f *streamer) giveUp(s *Stream, err error) {
	if !errors.Is(err, fs.ErrNotExist) || f.over() {
		s.fail(f.a.run.log, "cannot follow a log file", s.Worker.LocalRank, err)
	}
}
