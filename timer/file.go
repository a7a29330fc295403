package timer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A FileServer is a Server that gets its requests from a FIFO, one JSON object a
// line. It is wire-compatible with PyTorch's.
//
// A line that is no request is logged with its text (some of it, and not more than
// a few a second), counted and skipped. Where a writer died within a line, the
// line that follows is found again.
// Source: FileTimerServer in file_based_local_timer.py.
type FileServer struct {
	path   string
	server *Server

	lines, malformed, tooLong atomic.Uint64
	reading                   atomic.Int64 // since when the reader is busy, in ns since 1970; 0: it waits

	mu     sync.Mutex // guards the rest
	fifo   *fifo
	next   *fifo // what the reader goes on with
	cancel context.CancelFunc
	done   chan struct{} // closed when Serve has returned; nil before it was called
	closed bool
}

// ListenFIFO makes a FIFO at path, for Serve to read. A FIFO there that nobody
// reads, and an empty file, are replaced. Anything else there is an error: a server
// that reads it, a file with content, a directory, a symbolic link. (PyTorch's server
// removes whatever there is.) Only its user may open
// it, for who writes to it may have processes killed. (PyTorch's has 0666, less the umask.)
//
// Clients can write as soon as it returns.
func ListenFIFO(path string, cfg Config) (*FileServer, error) {
	server, err := NewServer(cfg)
	if err != nil {
		return nil, err
	}
	f, err := makeFIFO(path)
	if err != nil {
		server.alarm.close()
		return nil, fmt.Errorf("timer FIFO %s: %w", path, err)
	}
	return &FileServer{path: path, server: server, fifo: f}, nil
}

// Path is where the FIFO is.
func (f *FileServer) Path() string { return f.path }

// Server is the server of its timers.
func (f *FileServer) Server() *Server { return f.server }

// Reset makes it fit for the next attempt of a worker group, see Server.Reset. The
// FIFO stays as it is: workers of the new attempt may write at any time.
func (f *FileServer) Reset(owns func(pid int) bool) { f.server.Reset(owns) }

// Live is Server.Live.
func (f *FileServer) Live(limit int) []Request { return f.server.Live(limit) }

// Stats counts what the server and the reader did.
func (f *FileServer) Stats() Stats {
	s := f.server.Stats()
	s.Lines, s.Malformed, s.TooLong = f.lines.Load(), f.malformed.Load(), f.tooLong.Load()
	return s
}

// Progress is Server.Progress, for the reader of the FIFO too.
func (f *FileServer) Progress() time.Time {
	last := f.server.Progress()
	if since := f.reading.Load(); since != 0 && since < last.UnixNano() {
		last = time.Unix(0, since)
	}
	return last
}

// Serve reads requests and reaps until ctx is done or Close is called; it returns
// after everything that it started has ended and the FIFO is removed. The error is
// nil then. It may be called once.
//
// When somebody removes the FIFO it makes another one. When somebody else's is in
// its place it leaves that alone, logs it, and goes on with the timers it has.
func (f *FileServer) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	if f.closed || f.done != nil {
		f.mu.Unlock()
		return errors.New("timer FIFO: Serve was called before, or Close")
	}
	f.cancel, f.done = cancel, make(chan struct{})
	file := f.fifo
	f.mu.Unlock()
	defer close(f.done)

	served := make(chan error, 1)
	go func() { served <- f.server.Run(ctx) }()
	var wg sync.WaitGroup
	var err error
	wg.Go(func() {
		defer cancel() // without the reader there is no point
		err = f.read(ctx, file)
	})
	wg.Go(func() { f.guard(ctx) })
	wg.Wait()
	err = errors.Join(err, <-served, f.remove())
	f.server.wg.Wait() // what the reader had to tell
	return err
}

// Close ends Serve and waits for it. Without Serve it removes the FIFO.
func (f *FileServer) Close() error {
	f.mu.Lock()
	cancel, done, closed := f.cancel, f.done, f.closed
	f.closed = true
	f.mu.Unlock()
	if done != nil {
		cancel()
		<-done
		return nil
	}
	if closed {
		return nil
	}
	f.server.shut()
	return f.remove()
}

// remove removes the FIFO, unless another one is in its place.
func (f *FileServer) remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.fifo.file.Close()
	if !f.fifo.at(f.path) {
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("timer FIFO: %w", err)
	}
	return nil
}

// read takes requests from file, and from its successors, until ctx is done.
func (f *FileServer) read(ctx context.Context, file *fifo) error {
	r := newReader(f, ctx)
	defer r.quiet.end()
	for ctx.Err() == nil {
		stop := context.AfterFunc(ctx, file.wake)
		err := r.all(file)
		stop()
		f.mu.Lock()
		next := f.next
		f.next = nil
		f.mu.Unlock()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			file.file.Close()
			return fmt.Errorf("timer FIFO: %w", err)
		}
		if next != nil {
			r.drain(file)
			file.file.Close()
			file = next
		}
	}
	file.file.Close()
	return nil
}
