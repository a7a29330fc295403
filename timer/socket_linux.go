package timer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/tempdir"
)

// A SocketServer feeds a Server from a Unix socket that child processes write
// to, and answers each request when the timer stands. A client may only time the
// process that connected, or that one's descendants; Config.Owns has the last word.
//
// One goroutine serves all connections, in a loop over epoll that no connection
// can hold up: each gets one request a turn, and one that does not read its
// answers is closed. Measured against a goroutine for each connection on Go's own
// poller this answers in half the time, as there is one wake-up less.
type SocketServer struct {
	server *Server
	cfg    SocketConfig
	made   fs.FileInfo
	dir    string // to be removed; "" when Path was given
	loop   *socketLoop

	closing sync.Once
	served  atomic.Bool
	stats   struct {
		connected, rejected, requests, malformed, refused, heartbeats atomic.Uint64
		conns                                                         atomic.Int64
	}

	mu    sync.Mutex // guards beats
	beats map[int]Heartbeat
}

// ListenSocket makes the socket. Clients may connect from now on and are answered
// once Serve runs. Whoever calls it calls Serve or Close.
func ListenSocket(server *Server, cfg SocketConfig) (_ *SocketServer, err error) {
	cfg, err = cfg.complete(server)
	if err != nil {
		return nil, err
	}
	s := &SocketServer{server: server, cfg: cfg, beats: map[int]Heartbeat{}}
	if cfg.Path == "" {
		if s.dir, err = os.MkdirTemp(tempdir.Find(), "muster-timer-"); err != nil {
			return nil, fmt.Errorf("timer socket: %w", err)
		}
		s.cfg.Path = filepath.Join(s.dir, "socket")
	} else if s.cfg.Path, err = filepath.Abs(cfg.Path); err != nil {
		return nil, fmt.Errorf("timer socket: %w", err) // workers may run elsewhere
	}
	defer func() {
		if err != nil {
			s.remove()
			err = fmt.Errorf("timer socket: %w", err)
		}
	}()
	listener, err := listenAt(s.cfg.Path)
	if err != nil {
		return nil, err
	}
	if s.made, err = os.Lstat(s.cfg.Path); err == nil {
		s.loop, err = newSocketLoop(s, listener)
	}
	if err != nil {
		unix.Close(listener)
		return nil, err
	}
	return s, nil
}

// Path is the absolute path of the socket, for EnvSocket.
func (s *SocketServer) Path() string { return s.cfg.Path }

// Serve answers clients until ctx is done or Close is called, and closes
// everything. It may be called once. The error is nil unless the system fails.
func (s *SocketServer) Serve(ctx context.Context) error {
	if s.served.Swap(true) {
		return errors.New("timer socket: Serve or Close was called before")
	}
	stop := context.AfterFunc(ctx, s.loop.wake)
	err := s.loop.run()
	if !stop() {
		<-ctx.Done()
	}
	s.loop.close()
	s.remove()
	return err
}

// Close ends Serve, or frees what ListenSocket made if Serve was not called. It
// does not wait for Serve.
func (s *SocketServer) Close() {
	if s.served.Swap(true) {
		s.loop.wake()
		return
	}
	s.loop.close()
	s.remove()
}

func (s *SocketServer) remove() {
	s.closing.Do(func() {
		if s.made != nil && sameFile(s.cfg.Path, s.made) {
			_ = os.Remove(s.cfg.Path)
		}
		if s.dir != "" {
			_ = os.RemoveAll(s.dir)
		}
	})
}

// Heartbeat returns the last heartbeat of a process, which may have ended since,
// and a later process may have got its number: Time tells. Those of the 4096
// processes that were heard last are kept.
func (s *SocketServer) Heartbeat(pid int) (Heartbeat, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.beats[pid]
	return h, ok
}

const maxBeats = 4096

func (s *SocketServer) beat(pid int, step int64) {
	h := Heartbeat{PID: pid, Time: time.Now(), Step: step}
	s.stats.heartbeats.Add(1)
	s.mu.Lock()
	if _, ok := s.beats[pid]; !ok && len(s.beats) >= maxBeats {
		s.dropOldest()
	}
	s.beats[pid] = h
	s.mu.Unlock()
	if s.cfg.OnHeartbeat != nil {
		s.cfg.OnHeartbeat(h)
	}
}

func (s *SocketServer) dropOldest() {
	oldest := Heartbeat{PID: -1}
	for _, h := range s.beats {
		if oldest.PID < 0 || h.Time.Before(oldest.Time) {
			oldest = h
		}
	}
	delete(s.beats, oldest.PID)
}

// Stats returns the counts so far.
func (s *SocketServer) Stats() SocketStats {
	return SocketStats{
		Connected: s.stats.connected.Load(), Rejected: s.stats.rejected.Load(),
		Requests: s.stats.requests.Load(), Malformed: s.stats.malformed.Load(),
		Refused: s.stats.refused.Load(), Heartbeats: s.stats.heartbeats.Load(),
		Conns: int(s.stats.conns.Load()),
	}
}
