package timer

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// The sizes of the reader's memory. A chunk is what one read may bring.
const (
	maxLine   = 64 << 10
	chunkSize = 64 << 10
	batchSize = 256
	pipeSize  = 1 << 20
)

// A reader makes requests of the bytes of a FIFO. One goroutine uses it.
type reader struct {
	f     *FileServer
	quiet *limiter

	buf   []byte
	have  int  // how much of buf is the beginning of a line
	skip  bool // the line was too long: all up to its end is dropped
	eaten bool // the line was taken before its newline came
	batch []Request
	lines uint64 // of the batch
}

func newReader(f *FileServer) *reader {
	return &reader{
		f: f, quiet: &limiter{server: f.Server},
		buf: make([]byte, maxLine+chunkSize), batch: make([]Request, 0, batchSize),
	}
}

// all takes what comes until the read deadline of the FIFO.
func (r *reader) all(fifo *os.File) error {
	for {
		n, err := fifo.Read(r.space())
		if n > 0 {
			r.took(n)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
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
		if _, err := parseRequest(text); err == nil {
			r.line(text)
			r.eaten, text = true, nil
		}
	}
	r.flush()
	if len(text) > maxLine && !r.skip {
		r.bad(text, fmt.Errorf("longer than %d bytes", maxLine))
		r.f.Server.count(func(st *Stats) { st.FIFO.TooLong++ })
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
	q, err := parseRequest(text)
	if err != nil {
		r.bad(text, err)
		salvage(text, r.add)
		return
	}
	r.add(q)
}

func (r *reader) add(q Request) {
	r.batch = append(r.batch, q)
	if len(r.batch) == cap(r.batch) {
		r.flush()
	}
}

// flush registers what was read.
func (r *reader) flush() {
	r.f.Server.count(func(st *Stats) { st.FIFO.Lines += r.lines })
	r.lines = 0
	if len(r.batch) == 0 {
		return
	}
	r.quiet.register(r.batch)
	clear(r.batch)
	r.batch = r.batch[:0]
}

// bad tells of a line that is not a request.
func (r *reader) bad(text []byte, err error) {
	r.f.Server.count(func(st *Stats) { st.FIFO.Malformed++ })
	r.quiet.warn("malformed timer request skipped", "path", r.f.path,
		"text", clip(string(text[:min(len(text), 512)]), 512), "length", len(text), "error", err)
}

// A limiter lets ten warnings a second through, and says how many it held back. One
// goroutine uses it.
type limiter struct {
	server  *Server
	second  time.Time // when the one began in which count warnings came
	count   int
	dropped int
}

func (l *limiter) warn(msg string, args ...any) {
	if now := time.Now(); now.Sub(l.second) >= time.Second {
		l.second, l.count = now, 0
	}
	if l.count++; l.count > 10 {
		l.dropped++
		return
	}
	if l.dropped > 0 {
		args = append(args, "not_logged", l.dropped)
		l.dropped = 0
	}
	l.server.tell(slog.LevelWarn, msg, args...)
}

// register registers requests and warns of those that are refused.
func (l *limiter) register(batch []Request) {
	for _, bad := range l.server.register(batch, 4) {
		l.warn("timer request refused", "pid", bad.request.PID, "scope_id", clip(bad.request.ScopeID, 256),
			"error", bad.reason)
	}
}

// end tells of warnings that were held back.
func (l *limiter) end() {
	if l.dropped > 0 {
		l.server.tell(slog.LevelWarn, "more timer requests were malformed or refused", "not_logged", l.dropped)
	}
}
