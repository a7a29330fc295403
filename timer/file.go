package timer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/files/inotify"
)

// A FileServer feeds a Server from a FIFO, one JSON object a line. It is
// wire-compatible with PyTorch's.
//
// A line that is not a request is logged with its text (some of it, and not more than
// a few a second), counted and skipped. Where a writer died within a line, the
// line that follows is found again.
// Source: FileTimerServer in file_based_local_timer.py.
type FileServer struct {
	server *Server
	path   string
	fifo   *fifo // the first; Serve may make others
	used   atomic.Bool
	remade *limiter // of Serve: who removes the FIFO may do so as often as he likes
}

// ListenFIFO makes a FIFO at path, for Serve to read. A FIFO there that nobody
// reads, and an empty file, are replaced. Anything else there is an error: a server
// that reads it, a file with content, a directory, a symbolic link. (PyTorch's server
// removes whatever there is.) Only its user may open
// it, for who writes to it may have processes killed. (PyTorch's has 0666, less the umask.)
//
// Clients can write as soon as it returns. The caller calls Serve or Close.
func ListenFIFO(server *Server, path string) (*FileServer, error) {
	f, err := makeFIFO(path)
	if err != nil {
		return nil, fmt.Errorf("timer FIFO %s: %w", path, err)
	}
	remade := newLimiter(server, "the timer FIFO was removed more times")
	return &FileServer{server: server, path: path, fifo: f, remade: remade}, nil
}

// Path is where the FIFO is.
func (f *FileServer) Path() string { return f.path }

// Close removes the FIFO if Serve was not called. It may be called again.
func (f *FileServer) Close() error {
	if f.used.Swap(true) {
		return nil
	}
	return f.fifo.remove(f.path)
}

// Serve reads requests until ctx is done, removes the FIFO, and returns after
// everything that it started has ended. The error is nil then. It may be called once.
//
// When somebody removes the FIFO it makes another one. When somebody else's is in
// its place it leaves that alone, logs it, and goes on with the writers that it has.
func (f *FileServer) Serve(ctx context.Context) error {
	if f.used.Swap(true) {
		return errors.New("timer FIFO: Serve was called before, or Close")
	}
	r := newReader(f)
	defer f.ended()
	defer r.quiet.end()
	for fifo := f.fifo; ; {
		failed := make(chan error, 1)
		reading, cancel := context.WithCancel(ctx)
		go func() {
			defer cancel() // without the reader there is no point
			failed <- r.all(fifo)
		}()
		next := f.successor(reading, fifo)
		fifo.wake()
		err := <-failed
		cancel()
		if next == nil || err != nil {
			if err != nil {
				err = fmt.Errorf("timer FIFO: %w", err)
			}
			return errors.Join(err, fifo.remove(f.path))
		}
		r.drain(fifo)
		fifo.file.Close()
		fifo = next
	}
}

// ended logs what is left to be logged.
func (f *FileServer) ended() {
	f.remade.end()
	f.server.outbox.wait()
}

// successor waits until somebody has removed the FIFO, and returns one that it made in
// its place; or nil when ctx is done.
func (f *FileServer) successor(ctx context.Context, fifo *fifo) *fifo {
	interval := f.server.cfg.MaxInterval
	changed, stop := f.changes()
	defer stop()
	for {
		var again <-chan time.Time
		if changed == nil {
			again = time.After(interval)
		}
		if !leadsTo(f.path, fifo.info) {
			next, err := f.replace()
			switch {
			case next != nil:
				return next
			case err == nil:
				<-ctx.Done() // it is somebody else's
				return nil
			}
			again = time.After(interval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// changes returns a channel that has something when the FIFO may have been removed.
// It is nil where nobody tells: not on this system, or this user has no inotify
// instance left.
func (f *FileServer) changes() (changed chan struct{}, stop func()) {
	if f.server.cfg.blind {
		return nil, func() {}
	}
	w, err := inotify.New()
	if err != nil {
		return nil, func() {}
	}
	// The FIFO is watched, not its directory, where there may be much coming and
	// going. Removing it changes its number of links.
	if _, err := w.Add(f.path, inotify.Attrib|inotify.MoveSelf|inotify.DeleteSelf|inotify.DontFollow); err != nil {
		w.Close()
		return nil, func() {}
	}
	changed = make(chan struct{}, 1)
	var running sync.WaitGroup
	running.Go(func() {
		w.Run(func(inotify.Event) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	return changed, func() { w.Close(); running.Wait() }
}

// replace makes another FIFO in place of one that was removed. Without an error it
// returns nil when something else is there.
func (f *FileServer) replace() (*fifo, error) {
	if _, err := os.Lstat(f.path); err == nil {
		f.server.tell(slog.LevelError, "another process replaced the timer FIFO; running timers are kept, but new ones cannot arrive",
			"path", f.path)
		return nil, nil
	}
	next, err := makeFIFO(f.path)
	if err != nil {
		f.server.tell(slog.LevelError, "the timer FIFO was removed and cannot be created again", "error", err, "path", f.path)
		return nil, err
	}
	f.remade.warn("the timer FIFO was removed; created another", "path", f.path)
	return next, nil
}
