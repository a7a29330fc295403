package timer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/wire/unixsock"
)

// A SocketServer feeds a Server from a Unix socket that child processes write
// to, and answers each request when the timer stands. A client may only time the
// process that connected, or that one's descendants; Config.Owns has the last word.
//
// Each connection has a goroutine, and one that does not read its answers is closed.
type SocketServer struct {
	server   *Server
	path     string
	listener *net.UnixListener
	made     fs.FileInfo // of the socket
	dir      string      // to be removed; "" when there was a path

	used atomic.Bool

	mu    sync.Mutex // guards beats
	beats map[int]*pace
}

// ListenSocket makes the socket at path, which only this user may connect to. A
// socket there that nobody listens at is replaced; anything else is an error. Its
// directory may be of any length, the file's own name has 60 bytes at most. Without a
// path it is in a new directory below that for temporary files, which is removed at
// the end.
//
// Clients may connect from now on and are answered once Serve runs. Whoever calls it
// calls Serve or Close.
func ListenSocket(server *Server, path string) (_ *SocketServer, err error) {
	s := &SocketServer{server: server, beats: map[int]*pace{}}
	if path == "" {
		if s.dir, err = os.MkdirTemp(tempdir.Find(), "muster-timer-"); err != nil {
			return nil, fmt.Errorf("timer socket: %w", err)
		}
		path = filepath.Join(s.dir, "socket")
	}
	if s.path, err = filepath.Abs(path); err == nil { // workers may run elsewhere
		s.listener, err = unixsock.Listen("unixpacket", s.path)
	}
	if err == nil {
		s.made, err = os.Lstat(s.path)
	}
	if err != nil {
		s.remove()
		return nil, fmt.Errorf("timer socket: %w", err)
	}
	return s, nil
}

// Path is the absolute path of the socket, for EnvSocket.
func (s *SocketServer) Path() string { return s.path }

// acceptPause is how long the server rests when no descriptors are left.
const acceptPause = 100 * time.Millisecond

// Serve answers clients until ctx is done, and closes everything. It may be called
// once. The error is nil then.
func (s *SocketServer) Serve(ctx context.Context) error {
	if s.used.Swap(true) {
		return errors.New("timer socket: Serve or Close was called before")
	}
	defer s.remove()
	stop := context.AfterFunc(ctx, func() { s.listener.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	for short := false; ; {
		conn, err := s.listener.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case err != nil: // no descriptors are left: those who wait stay in the kernel's queue
			if !short {
				s.server.cfg.Logger.Warn("timer socket: cannot accept a connection; trying again", "error", err,
					"connections", s.server.Stats().Socket.Conns)
			}
			short = true
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		default:
			short = false
			if c := s.welcome(conn); c != nil {
				conns.Go(func() { s.serve(ctx, c) })
			}
		}
	}
}

// Close frees what ListenSocket made if Serve was not called. It may be called again.
func (s *SocketServer) Close() {
	if !s.used.Swap(true) {
		s.remove()
	}
}

func (s *SocketServer) remove() {
	if s.listener != nil {
		s.listener.Close()
	}
	if s.made != nil && leadsTo(s.path, s.made) {
		_ = os.Remove(s.path)
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// Heartbeat returns the last heartbeat of a process, which may have ended since,
// and a later process may have got its number: Time tells. Those of the 4096
// processes that were heard last are kept.
func (s *SocketServer) Heartbeat(pid int) (Heartbeat, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.beats[pid]
	if !ok {
		return Heartbeat{}, false
	}
	return p.at(time.Now()), true
}

const maxBeats = 4096

func (s *SocketServer) beat(pid int, step int64) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.count(func(st *Stats) { st.Socket.Heartbeats++ })
	p, ok := s.beats[pid]
	if !ok {
		if len(s.beats) >= maxBeats {
			oldest := slices.MinFunc(slices.Collect(maps.Values(s.beats)), func(a, b *pace) int {
				return a.Time.Compare(b.Time)
			})
			delete(s.beats, oldest.PID)
		}
		p = &pace{Heartbeat: Heartbeat{PID: pid}}
		s.beats[pid] = p
	}
	p.beat(step, now)
}
