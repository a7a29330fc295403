package timer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

// A socketConn is a connection and the process that made it.
type socketConn struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	peer *handle
}

// welcome takes a connection on, or says why not and closes it.
func (s *SocketServer) welcome(conn *net.UnixConn) *socketConn {
	raw, err := conn.SyscallConn()
	c := &socketConn{conn: conn, raw: raw}
	if err == nil {
		c.peer, err = s.meet(raw)
	}
	if n := s.Server.Stats().Socket.Conns; err == nil && n >= s.Server.cfg.conns {
		err = fmt.Errorf("%w: %d connections are open; does each of your processes keep only one?", ErrTooMany, n)
	}
	if err != nil {
		s.Server.count(func(st *Stats) { st.Socket.Rejected++ })
		s.Server.cfg.Logger.Debug("timer connection rejected", "error", err)
		_ = c.answer(verdict(err))
		c.close()
		return nil
	}
	s.Server.count(func(st *Stats) { st.Socket.Connected++; st.Socket.Conns++ })
	return c
}

func (c *socketConn) close() {
	c.conn.Close()
	c.peer.close()
}

// meet names the process at the other end for good. Before Linux 6.5 one that takes
// its number between connect and here is mistaken for it.
func (s *SocketServer) meet(raw syscall.RawConn) (*handle, error) {
	var cred *unix.Ucred
	var err error
	pidfd := -1
	broken := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if n, e := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); e == nil && !s.Server.cfg.bare {
			pidfd = n
			unix.CloseOnExec(pidfd)
		}
	})
	switch {
	case broken != nil || err != nil:
		err = fmt.Errorf("%w: cannot tell which process connects: %v", ErrNotOwned, errors.Join(broken, err))
	case int(cred.Uid) != os.Geteuid():
		err = fmt.Errorf("%w: it is user %d's, and this server is user %d's", ErrNotOwned, cred.Uid, os.Geteuid())
	case cred.Pid <= 0:
		err = fmt.Errorf("%w: it is in a pid namespace that this server does not see", ErrNotOwned)
	case pidfd < 0:
		return openHandle(int(cred.Pid), s.Server.cfg.bare)
	default:
		return &handle{pid: int(cred.Pid), fd: pidfd}, nil
	}
	if pidfd >= 0 {
		unix.Close(pidfd)
	}
	return nil, err
}

// converse answers requests until the client hangs up or ctx is done.
func (s *SocketServer) converse(ctx context.Context, c *socketConn) {
	defer s.Server.count(func(st *Stats) { st.Socket.Conns-- })
	defer c.close()
	defer context.AfterFunc(ctx, func() { c.conn.Close() })()
	var packet [maxFrame + 1]byte // one more, to see a packet that is too long
	for {
		n, err := c.read(packet[:])
		if err == unix.ECONNRESET {
			continue // it is told once, and what was sent before lies behind it
		}
		if err != nil || n <= 0 || !s.turn(c, packet[:n]) {
			return
		}
	}
}

// turn deals with a request. It returns whether the connection is still of use.
func (s *SocketServer) turn(c *socketConn, packet []byte) bool {
	s.Server.count(func(st *Stats) { st.Socket.Requests++ })
	f, err := parseFrame(packet)
	if err != nil {
		s.Server.count(func(st *Stats) { st.Socket.Malformed++ })
		s.Server.cfg.Logger.Debug("malformed timer request", "pid", c.peer.pid, "error", err)
		_ = c.answer(statusMalformed, err.Error())
		return false
	}
	if err = s.handle(c, &f); err != nil {
		s.Server.count(func(st *Stats) { st.Socket.Refused++ })
		s.Server.cfg.Logger.Debug("timer request refused", "pid", c.peer.pid, "error", err)
	}
	if f.kind == frameHeartbeat {
		return true // nobody waits for an answer
	}
	// One that has hung up may have sent more before, such as a release. One that
	// does not read its answers is not waited for.
	err = c.answer(verdict(err))
	return err == nil || err == unix.EPIPE || err == unix.ECONNRESET
}

// read waits for a packet.
func (c *socketConn) read(to []byte) (n int, err error) {
	closed := c.raw.Read(func(fd uintptr) bool {
		n, err = retry(func() (int, error) { return unix.Read(int(fd), to) })
		return err != unix.EAGAIN
	})
	return n, cmp.Or(closed, err)
}

// answer answers a request. It does not wait: the error is EAGAIN for a client that
// has not read its answers.
func (c *socketConn) answer(st status, text string) (err error) {
	var buf [maxAnswer]byte
	packet := appendAnswer(buf[:0], st, text)
	closed := c.raw.Write(func(fd uintptr) bool {
		_, err = retry(func() (int, error) {
			return 0, unix.Sendto(int(fd), packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		})
		return true
	})
	return cmp.Or(closed, err)
}

// verdict says how what became of a request travels.
func verdict(err error) (status, string) {
	switch {
	case err == nil:
		return statusDone, ""
	case errors.Is(err, ErrTooMany):
		return statusBusy, err.Error()
	case errors.Is(err, ErrInvalid):
		return statusMalformed, err.Error()
	default:
		return statusRefused, err.Error()
	}
}

// handle does what a request asks for.
func (s *SocketServer) handle(c *socketConn, f *frame) error {
	pid, err := c.subject(f.pid)
	if err != nil {
		return err
	}
	r := Request{PID: pid, ScopeID: string(f.scope)}
	switch f.kind {
	case frameHeartbeat:
		if err := s.Server.owned(pid); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		s.beat(pid, f.step)
		return nil
	case frameAcquire:
		r.ExpirationTime, r.Signal = fromSeconds(f.time), f.signal
	}
	for _, refused := range s.Server.register([]Request{r}, 1) {
		return refused
	}
	return nil
}

// subject returns the process that a request is about: the one that connected, or
// one that descends from it.
func (c *socketConn) subject(pid int) (int, error) {
	peer := c.peer.pid
	if !c.peer.alive() {
		// Its connection was inherited, and its number may be another's by now.
		return 0, fmt.Errorf("%w: process %d, which connected, has ended; connect anew", errNoProcess, peer)
	}
	if pid == 0 || pid == peer {
		return peer, nil
	}
	if own, _ := procfs.Descends(pid, peer); own {
		return pid, nil
	}
	return 0, fmt.Errorf("%w: process %d may time itself and its descendants, and %d is none of them", ErrNotOwned, peer,
		pid)
}
