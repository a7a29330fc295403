package timer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
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
	*Server
	path   string
	made   fs.FileInfo // the FIFO; Serve may make others
	call   life        // of Serve
	own    bool        // Close closes the Server, too
	remade *limiter    // of Serve: who removes the FIFO may do so as often as he likes
}

// ListenFIFO makes a FIFO at path, for Serve to read. A FIFO there that nobody
// reads, and an empty file, are replaced. Anything else there is an error: a server
// that reads it, a file with content, a directory, a symbolic link. (PyTorch's server
// removes whatever there is.) Only its user may open
// it, for who writes to it may have processes killed. (PyTorch's has 0666, less the umask.)
//
// Clients can open it once Serve and the server's Run are called; they try for about a second. The
// caller calls Serve, Close, or both.
func ListenFIFO(server *Server, path string) (*FileServer, error) {
	if server == nil {
		return nil, fmt.Errorf("timer FIFO %s: server is nil; make one with NewServer", path)
	}
	made, err := makeFIFO(path)
	if err != nil {
		return nil, fmt.Errorf("timer FIFO %s: %w", path, err)
	}
	remade := newLimiter(server, "the timer FIFO was removed more times")
	f := &FileServer{Server: server, path: path, made: made, remade: remade}
	server.unserved(f)
	return f, nil
}

// StartFIFO starts a server with a FIFO at path, as ListenFIFO makes it. Close ends both.
// Source: FileTimerServer.start in file_based_local_timer.py.
func StartFIFO(cfg Config, path string) (*FileServer, error) {
	server, err := NewServer(cfg)
	if err != nil {
		return nil, err
	}
	f, err := ListenFIFO(server, path)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	f.own = true
	fifo, err := openFIFO(path, f.made)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("timer FIFO %s: %w", path, err), server.Close())
	}
	server.start()
	server.feed("FIFO", &f.call, func(ctx context.Context) error { return f.read(ctx, fifo) })
	return f, nil
}

// Path is where the FIFO is.
func (f *FileServer) Path() string { return f.path }

// Close ends Serve and waits for it, or removes the FIFO if Serve was not called. It ends the
// server, too, if StartFIFO started it. It may be called again.
func (f *FileServer) Close() (err error) {
	if f.call.close() {
		err = removeFIFO(f.path, f.made)
	}
	f.served(f)
	if f.own {
		err = errors.Join(err, f.Server.Close())
	}
	return err
}

// Serve waits until the server runs, reads requests until ctx is done or Close, removes the FIFO, and returns after
// everything that it started has ended. The error is nil then. It may be called once.
//
// When somebody removes the FIFO it makes another one. When somebody else's is in
// its place it leaves that alone, logs it, and continues with the writers that it has.
func (f *FileServer) Serve(ctx context.Context) error {
	ctx, ended, ok := f.call.begin(ctx)
	if !ok {
		return errors.New("timer FIFO: Serve was called before, or Close")
	}
	defer ended()
	return f.serve(ctx)
}

func (f *FileServer) serve(ctx context.Context) error {
	select {
	case <-f.begun:
	case <-ctx.Done():
		return removeFIFO(f.path, f.made)
	}
	fifo, err := openFIFO(f.path, f.made)
	if err != nil {
		return fmt.Errorf("timer FIFO %s: %w", f.path, err)
	}
	return f.read(ctx, fifo)
}

// read is Serve, with an open FIFO.
func (f *FileServer) read(ctx context.Context, fifo *fifo) (err error) {
	f.served(f)
	defer func() {
		if err != nil {
			f.unserved(f)
		}
	}()
	r := newReader(f)
	defer f.ended()
	defer r.quiet.end()
	for {
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
			fifo.file.Close()
			return errors.Join(err, removeFIFO(f.path, fifo.info))
		}
		r.drain(fifo)
		fifo.file.Close()
		fifo = next
	}
}

// ended logs what is left to be logged.
func (f *FileServer) ended() {
	f.remade.end()
	f.Server.outbox.wait()
}

// successor waits until somebody has removed the FIFO, and returns one that it made in
// its place; or nil when ctx is done.
func (f *FileServer) successor(ctx context.Context, fifo *fifo) *fifo {
	interval := f.Server.cfg.MaxInterval
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
	if f.Server.cfg.blind {
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
		f.Server.tell(slog.LevelError, "another process replaced the timer FIFO; running timers are kept, but new ones cannot arrive",
			"path", f.path)
		return nil, nil
	}
	made, err := makeFIFO(f.path)
	var next *fifo
	if err == nil {
		next, err = openFIFO(f.path, made)
	}
	if err != nil {
		f.Server.tell(slog.LevelError, "the timer FIFO was removed and cannot be created again", "error", err, "path", f.path)
		return nil, err
	}
	f.remade.warn("the timer FIFO was removed; created another", "path", f.path)
	return next, nil
}
