package timer

import (
	"cmp"
	"fmt"
	"time"
	"unsafe"

	"github.com/muster-run/muster/internal/procfs"
)

// handle does what a request asks for.
func (s *SocketServer) handle(c *socketConn, f *frame) error {
	pid, err := s.subject(c, f.pid)
	if err != nil {
		return err
	}
	if f.kind == frameHeartbeat {
		return s.heartbeat(c, pid, f.step)
	}
	r := [1]Request{{PID: pid, ExpirationTime: release}}
	if len(f.scope) > 0 {
		// register keeps nothing of it.
		r[0].ScopeID = unsafe.String(&f.scope[0], len(f.scope))
	}
	if f.kind == frameAcquire {
		r[0].ExpirationTime, r[0].Signal = f.time, f.signal
	}
	for _, bad := range s.server.register(r[:], 1) {
		return &RefusedError{Request: bad.request, Err: bad.err}
	}
	return nil
}

// subject returns the process that a request is about: the one that connected, or
// one that descends from it.
func (s *SocketServer) subject(c *socketConn, pid int) (int, error) {
	peer := c.peer.pid
	if !c.alive() {
		// Its connection was inherited, and its number may be another's by now.
		return 0, fmt.Errorf("%w: process %d, which connected, has ended; connect anew", ErrNoProcess, peer)
	}
	if pid == 0 || pid == peer || descends(pid, peer) {
		return cmp.Or(pid, peer), nil
	}
	return 0, fmt.Errorf("%w: process %d may time itself and its descendants, and %d is none of them", ErrNotOwned, peer, pid)
}

// maxGenerations bounds how far descends looks.
const maxGenerations = 64

// descends says whether ancestor is a parent of pid, at whatever distance.
func descends(pid, ancestor int) bool {
	for range maxGenerations {
		stat, err := procfs.Read(pid)
		if err != nil || stat.Parent <= 0 {
			return false
		}
		if pid = stat.Parent; pid == ancestor {
			return true
		}
	}
	return false
}

func (s *SocketServer) heartbeat(c *socketConn, pid int, step int64) error {
	if err := s.vouch(c, pid); err != nil {
		return err
	}
	s.beat(pid, step)
	return nil
}

// vouch asks Config.Owns, for a connection's own process once in an attempt, and
// after a no not at once again.
func (s *SocketServer) vouch(c *socketConn, pid int) error {
	owns, attempt := s.server.owner()
	if owns == nil || pid == c.peer.pid && c.known && c.attempt == attempt {
		return nil
	}
	now := time.Now()
	if now.Before(c.again) || !owns(pid) {
		if !now.Before(c.again) {
			c.again = now.Add(refusalTime)
		}
		return fmt.Errorf("process %d: %w", pid, ErrNotOwned)
	}
	if pid == c.peer.pid {
		c.known, c.attempt = true, attempt
	}
	return nil
}

// owner returns whom to ask whether a process is the server's, and for how long
// the answer holds.
func (s *Server) owner() (owns func(pid int) bool, attempt int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owns, s.attempt
}
