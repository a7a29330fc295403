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
	"time"

	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/unixsock"
)

// A SocketServer feeds a Server from a Unix socket that child processes write
// to, and answers each request when the timer stands. A client may only time the
// process that connected, or that one's descendants; Config.Owns has the last word.
//
// Each connection has a goroutine, and one that does not read its answers is closed.
type SocketServer struct {
	*Server
	path     string
	listener *net.UnixListener
	made     fs.FileInfo // of the socket
	dir      string      // to be removed; "" when there was a path

	call life // of Serve
	own  bool // Close closes the Server, too

	mu    sync.Mutex // guards beats
	beats map[int]*pace
}

// ListenSocket makes the socket at path, which only this user may connect to. A
// socket there that nobody listens at is replaced; anything else is an error. Its
// directory may be of any length, the file's own name has 60 bytes at most. Without a
// path it is in a new directory below that for temporary files, which is removed at
// the end.
//
// Clients may connect from now on and are answered once Serve and the server's Run are called.
// Whoever calls it calls Serve, Close, or both.
func ListenSocket(server *Server, path string) (_ *SocketServer, err error) {
	if server == nil {
		return nil, errors.New("timer socket: server is nil; make one with NewServer")
	}
	s := &SocketServer{Server: server, beats: map[int]*pace{}}
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
	server.unserved(s)
	return s, nil
}

// StartSocket starts a server with a socket, as ListenSocket makes it. Close ends both.
func StartSocket(cfg Config, path string) (*SocketServer, error) {
	server, err := NewServer(cfg)
	if err != nil {
		return nil, err
	}
	s, err := ListenSocket(server, path)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	s.own = true
	server.start()
	server.feed("socket", &s.call, s.serve)
	return s, nil
}

// Path is the absolute path of the socket, for EnvSocket.
func (s *SocketServer) Path() string { return s.path }

// Serve waits until the server runs, answers clients until ctx is done or Close, and closes
// everything. It may be called once. The error is nil then.
func (s *SocketServer) Serve(ctx context.Context) error {
	return s.call.run(ctx, "timer socket: Serve or Close was called before", s.serve)
}

func (s *SocketServer) serve(ctx context.Context) error {
	defer s.remove()
	select {
	case <-s.begun:
	case <-ctx.Done():
		return nil
	}
	s.served(s)
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
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
				s.Server.cfg.Logger.Warn("timer socket: cannot accept a connection; trying again", "error", err,
					"connections", s.Server.Stats().Socket.Conns)
			}
			short = true
			_ = sleep.For(ctx, acceptPause)
		default:
			short = false
			if c := s.welcome(conn); c != nil {
				conns.Go(func() { s.converse(ctx, c) })
			}
		}
	}
}

// Close ends Serve and waits for it, or frees what ListenSocket made if Serve was not called. It
// ends the server, too, if StartSocket started it. It may be called again.
func (s *SocketServer) Close() (err error) {
	if s.call.close() {
		s.remove()
	}
	s.served(s)
	if s.own {
		err = s.Server.Close()
	}
	return err
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
	s.Server.count(func(st *Stats) { st.Socket.Heartbeats++ })
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
