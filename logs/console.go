package logs

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// pipeAtomic is how much a write to a pipe may hold so that no other writer's
// bytes come in between (PIPE_BUF).
const pipeAtomic = 4096

// A console is a destination that several streams share: the agent's stdout or
// stderr, or a file of filtered lines.
//
// Lines stay whole. A line may be begun, as a progress bar is, and then open
// names the stream it belongs to; another stream's output ends it with a
// newline first.
//
// Tails, relays and the agent write to it, each from a goroutine of its own, and wait for
// mu while another's write is stuck. So code that must not wait asks closed or failure,
// which do not take it. Whoever copies a line in several writes holds mu over all of them.
type console struct {
	w        io.Writer
	file     *os.File // w, when it is ours to close
	terminal bool
	pipe     bool

	mu   sync.Mutex // guards the rest, and is held over every write
	open any        // the stream whose unfinished line is at the end; nil: none
	last byte       // the last byte written; 0: none yet
	err  error      // the first error of a write

	closed atomic.Bool // nobody reads it any more
}

// relays owns an unfinished line that only a relay may continue: streams without
// prefixes share lines with each other as their writers had it.
var relays any = new(int)

// newConsole makes a console of a descriptor of its own for f: Go kills a
// program that writes to a closed pipe through descriptor 1 or 2.
func newConsole(f *os.File) *console {
	own, err := dup(f)
	if err != nil {
		c := &console{err: err}
		c.closed.Store(true)
		return c
	}
	c := &console{w: own, file: own, terminal: isTerminal(f)}
	if fi, err := f.Stat(); err == nil {
		c.pipe = fi.Mode()&os.ModeNamedPipe != 0
	}
	return c
}

func (c *console) close() {
	if c.file != nil {
		c.file.Close()
	}
}

// put writes p, a piece of owner's output, whose first shown bytes are there already
// if they were the last thing written. (Where p is shorter, the worker has replaced what was
// shown.) It ends another line first. It returns how many bytes at the end of p could not be
// written.
func (c *console) put(owner any, p []byte, shown int) (lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := p[len(p)-1] != '\n'
	if c.open == owner && shown <= len(p) {
		p = p[shown:]
	} else {
		c.end()
	}
	c.open = nil
	if begun {
		c.open = owner
	}
	return len(p) - c.write(p)
}

// end ends the line that is begun. The caller holds mu.
func (c *console) end() {
	if c.open != nil {
		c.open = nil
		c.write([]byte{'\n'})
	}
}

// isOpen reports whether the line that owner has begun is at the end.
func (c *console) isOpen(owner any) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open == owner
}

// leave ends the line that owner has begun, or makes it one that it will not continue.
func (c *console) leave(owner any, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.open != owner:
	case end:
		c.end()
	default:
		c.open = relays
	}
}

// write writes p and returns how much of it was. The caller holds mu. After an
// error that may pass (no space) the next write is tried again, on a new line.
func (c *console) write(p []byte) (written int) {
	for len(p) > 0 && !c.closed.Load() {
		n, err := c.w.Write(p[:c.chunk(p)])
		if n > 0 {
			c.last = p[n-1]
		}
		written += n
		p = p[n:]
		if err == nil {
			continue
		}
		if errors.Is(err, syscall.EAGAIN) && c.file != nil && waitWritable(c.file) == nil {
			continue
		}
		if c.err == nil {
			c.err = err
		}
		c.open = nil
		if c.last != 0 && c.last != '\n' {
			c.open = relays
		}
		c.closed.Store(isGone(err, c.terminal))
		break
	}
	return written
}

// chunk returns how much of p to write at once: to a pipe, whole lines that
// nothing can come between.
func (c *console) chunk(p []byte) int {
	if !c.pipe || len(p) <= pipeAtomic {
		return len(p)
	}
	if i := bytes.LastIndexByte(p[:pipeAtomic], '\n'); i >= 0 {
		return i + 1
	}
	if i := bytes.IndexByte(p[pipeAtomic:], '\n'); i >= 0 {
		return pipeAtomic + i + 1
	}
	return len(p)
}

// isGone reports whether an error of a write means that all later ones fail.
func isGone(err error, terminal bool) bool {
	gone := []error{syscall.EPIPE, syscall.ECONNRESET, syscall.EBADF, os.ErrClosed, io.ErrClosedPipe}
	return slices.ContainsFunc(gone, func(g error) bool { return errors.Is(err, g) }) ||
		terminal && errors.Is(err, syscall.EIO)
}

// failure returns the first error of a write, or nil; it does not wait for a
// write that is stuck.
func (c *console) failure() error {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	return c.err
}

// consoleWriter is the agent's own way to a console.
type consoleWriter struct{ c *console }

func (w consoleWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if lost := w.c.put(w, p, 0); lost > 0 {
		return len(p) - lost, cmp.Or(w.c.failure(), io.ErrShortWrite)
	}
	return len(p), nil
}

// sameWriter reports whether both are the same.
func sameWriter(a, b io.Writer) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// sameFile reports whether both are the same file, pipe or terminal, but not /dev/null.
func sameFile(a, b *os.File) bool {
	fa, errA := a.Stat()
	fb, errB := b.Stat()
	null, errNull := os.Stat(os.DevNull)
	return errA == nil && errB == nil && os.SameFile(fa, fb) && (errNull != nil || !os.SameFile(fa, null))
}
