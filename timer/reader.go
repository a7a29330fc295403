package timer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// The sizes of the reader's memory. A chunk is what one read may bring.
const (
	maxLine   = 64 << 10
	chunkSize = 64 << 10
	batchSize = 256
	pipeSize  = 1 << 20
)

// A reader makes requests of bytes.
type reader struct {
	f     *FileServer
	ctx   context.Context
	quiet limiter

	buf   []byte
	have  int  // how much of buf is the beginning of a line
	skip  bool // the line was too long: all up to its end is dropped
	eaten bool // the line was taken before its newline came
	batch []Request
	lines uint64

	at    int64 // when the last bytes came, in ns since 1970
	quick int   // how many reads in a row followed the one before at once
}

func newReader(f *FileServer, ctx context.Context) *reader {
	r := &reader{f: f, ctx: ctx, buf: make([]byte, maxLine+chunkSize), batch: make([]Request, 0, batchSize)}
	r.quiet.log = func(msg string, args ...any) { f.server.tell(slog.LevelWarn, msg, args...) }
	return r
}

// all takes what comes until there is an error, of the deadline for one.
func (r *reader) all(file *fifo) error {
	for {
		n, err := file.file.Read(r.space())
		if n > 0 {
			at := time.Now().UnixNano()
			r.f.reading.Store(at)
			r.took(n)
			r.f.reading.Store(0)
			if r.crowded(at, n) {
				nap(crowdPause)
			}
		}
		if err != nil {
			return err
		}
	}
}

// When lines come one by one and faster than crowdGap, to be woken up by each costs
// the server and the writers more than the rest. Then the reader lets them pile up
// for crowdPause, as long as crowdBytes and more do.
const (
	crowdGap   = 50 * time.Microsecond
	crowdReads = 16
	crowdPause = 100 * time.Microsecond
	crowdBytes = 512
)

// crowded says whether to wait before the next read, after one of n bytes.
func (r *reader) crowded(at int64, n int) bool {
	gap := at - r.at
	r.at = at
	switch {
	case n >= chunkSize/2: // there is much already
		r.quick = 0
	case r.quick >= crowdReads && n >= crowdBytes:
		return true
	case gap > int64(crowdGap):
		r.quick = 0
	default:
		r.quick++
	}
	return r.quick >= crowdReads
}

// space is where the next bytes go.
func (r *reader) space() []byte { return r.buf[r.have : r.have+chunkSize] }

// took deals with the n bytes that space was filled with.
func (r *reader) took(n int) {
	text := r.buf[:r.have+n]
	from := r.have // no newline before
	for {
		i := bytes.IndexByte(text[from:], '\n')
		if i < 0 {
			break
		}
		r.line(text[:from+i])
		text, from = text[from+i+1:], 0
	}
	if r.eaten && len(bytes.TrimSpace(text)) > 0 {
		r.eaten = false
	}
	if len(text) > 0 && text[len(text)-1] == '}' && !r.skip {
		// A whole request needs no newline; its writer may never send one.
		if _, err := ParseRequest(text); err == nil {
			r.line(text)
			r.eaten, text = true, nil
		}
	}
	r.flush()
	if len(text) > maxLine && !r.skip {
		r.bad(text, fmt.Errorf("longer than %d bytes", maxLine))
		r.f.tooLong.Add(1)
		r.lines++
		r.skip = true
	}
	if r.skip {
		text = nil
	}
	r.have = copy(r.buf, text)
}

// line takes one line, without its newline.
func (r *reader) line(text []byte) {
	if r.skip {
		r.skip = false
		return
	}
	if r.eaten {
		if r.eaten = false; len(bytes.TrimSpace(text)) == 0 {
			return
		}
	}
	r.lines++
	q, ok := parseFast(text)
	if !ok {
		var err error
		if q, err = parseSlow(text); err != nil {
			r.bad(text, err)
			salvage(text, r.add)
			return
		}
	}
	r.add(q)
}

func (r *reader) add(q Request) {
	r.batch = append(r.batch, q)
	if len(r.batch) == cap(r.batch) {
		r.flush()
	}
}

// flush registers what was read, and then what has become due: nobody's flood of
// requests delays another's deadline.
func (r *reader) flush() {
	s := r.f.server
	if r.lines > 0 {
		r.f.lines.Add(r.lines)
		r.lines = 0
	}
	if len(r.batch) == 0 {
		return
	}
	for _, bad := range s.register(r.batch, 4) {
		r.quiet.warn("timer request refused", "pid", bad.request.PID, "scope_id", clip(bad.request.ScopeID, 256), "error", bad.err)
	}
	clear(r.batch)
	r.batch = r.batch[:0]
	if s.due() {
		s.fire(r.ctx)
	}
}

// bad tells of a line that is no request.
func (r *reader) bad(text []byte, err error) {
	r.f.malformed.Add(1)
	r.quiet.warn("malformed timer request skipped", "path", r.f.path, "text", clip(string(text[:min(len(text), 512)]), 512), "length", len(text), "error", err)
}

// drain takes what is still in a FIFO that was removed.
func (r *reader) drain(file *fifo) {
	for {
		n := 0
		err := file.control(func(fd int) (err error) {
			n, err = unix.Read(fd, r.space())
			return err
		})
		if err != nil || n <= 0 {
			break
		}
		r.took(n)
	}
	if r.have > 0 {
		r.bad(r.buf[:r.have], errors.New("cut off"))
	}
	r.have, r.skip, r.eaten = 0, false, false
}

// A limiter lets ten messages through at once and then ten a second, and says how
// many it held back.
type limiter struct {
	log     func(msg string, args ...any)
	tokens  float64
	last    time.Time
	dropped int
}

func (l *limiter) warn(msg string, args ...any) {
	const rate, most = 10, 10
	at := time.Now()
	if l.last.IsZero() {
		l.tokens = most
	} else {
		l.tokens = min(l.tokens+at.Sub(l.last).Seconds()*rate, most)
	}
	l.last = at
	if l.tokens < 1 {
		l.dropped++
		return
	}
	l.tokens--
	if l.dropped > 0 {
		args = append(args, "not_logged", l.dropped)
		l.dropped = 0
	}
	l.log(msg, args...)
}

// end tells of messages that were held back.
func (l *limiter) end() {
	if l.dropped > 0 {
		l.log("more timer requests were malformed or refused", "not_logged", l.dropped)
		l.dropped = 0
	}
}
