package timer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
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
	path string
	made fs.FileInfo // the FIFO
	call life        // of Serve
	own  bool        // Close closes the Server, too
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
	f := &FileServer{Server: server, path: path, made: made}
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
// When somebody removes or replaces the FIFO it continues with the writers that it has, and leaves
// alone what is in its place, as PyTorch's server does.
func (f *FileServer) Serve(ctx context.Context) error {
	return f.call.run(ctx, "timer FIFO: Serve was called before, or Close", f.serve)
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
func (f *FileServer) read(ctx context.Context, fifo *os.File) error {
	f.served(f)
	stop := context.AfterFunc(ctx, func() { _ = fifo.SetReadDeadline(time.Unix(1, 0)) }) // ends all reads
	r := newReader(f)
	err := r.all(fifo)
	stop()
	if err != nil {
		f.unserved(f)
		err = fmt.Errorf("timer FIFO: %w", err)
	}
	fifo.Close()
	r.quiet.end()
	f.Server.outbox.wait()
	return errors.Join(err, removeFIFO(f.path, f.made))
}
