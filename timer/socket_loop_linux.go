package timer

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A socketLoop waits for all descriptors of a SocketServer at once. Only the
// goroutine in run touches it, but for wake and close.
type socketLoop struct {
	s        *SocketServer
	epoll    int
	listener int
	paused   bool // out of descriptors: the listener is not in the set
	conns    map[int32]*socketConn
	peers    map[int32]*socketConn // by their pidfd, which tells when they end
	packet   [maxFrame + 1]byte    // one more, to see a packet that is too long
	answer   []byte

	mu    sync.Mutex // guards the rest
	event int        // an eventfd, -1 after close
}

func newSocketLoop(s *SocketServer, listener int) (*socketLoop, error) {
	l := &socketLoop{s: s, listener: listener, epoll: -1, event: -1, conns: map[int32]*socketConn{}, peers: map[int32]*socketConn{}}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		l.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err == nil {
		err = errors.Join(l.add(l.event), l.add(listener))
	}
	if err != nil {
		unix.Close(l.epoll)
		unix.Close(l.event)
		return nil, fmt.Errorf("watch the socket: %w", err)
	}
	return l, nil
}

func (l *socketLoop) add(fd int) error {
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// wake ends run.
func (l *socketLoop) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.event >= 0 {
		_, _ = unix.Write(l.event, []byte{0, 0, 0, 0, 0, 0, 0, 1})
	}
}

// acceptPause is how long the listener rests when no descriptors are left, unless a
// connection of its own is closed before.
const acceptPause = 1000 // ms

// run serves until wake.
func (l *socketLoop) run() error {
	events := make([]unix.EpollEvent, 64)
	for {
		timeout := -1
		if l.paused {
			timeout = acceptPause
		}
		n, err := unix.EpollWait(l.epoll, events, timeout)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("timer socket: wait for clients: %w", err)
		case n == 0:
			l.resume()
		}
		for i := range events[:n] {
			switch fd := events[i].Fd; int(fd) {
			case l.event:
				return nil
			case l.listener:
				l.accept()
			default:
				// One that was closed in this round is in it no more.
				if c := l.peers[fd]; c != nil {
					l.orphan(c)
				} else if c := l.conns[fd]; c != nil && !l.turn(c) {
					l.drop(c)
				}
			}
		}
	}
}

// close frees everything.
func (l *socketLoop) close() {
	for _, c := range l.conns {
		l.drop(c)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.event < 0 {
		return
	}
	unix.Close(l.epoll)
	unix.Close(l.event)
	unix.Close(l.listener)
	l.event = -1
}

// acceptAtOnce bounds how long those who connect keep the others waiting.
const acceptAtOnce = 16

func (l *socketLoop) accept() {
	for range acceptAtOnce {
		fd, _, err := unix.Accept4(l.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch err {
		case nil:
			l.welcome(fd)
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EAGAIN:
			return
		default:
			l.suspend(err)
			return
		}
	}
}

// suspend takes the listener out of the set, which would otherwise report it for
// ever: those who wait stay in the kernel's queue.
func (l *socketLoop) suspend(err error) {
	l.s.cfg.Logger.Warn("timer socket accepts nobody for now", "error", err, "connections", len(l.conns))
	l.paused = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, l.listener, nil) == nil
}

func (l *socketLoop) resume() {
	if l.paused {
		l.paused = l.add(l.listener) != nil
	}
}

// welcome takes a connection on, or says why not.
func (l *socketLoop) welcome(fd int) {
	c, err := l.s.meet(fd)
	if err == nil && len(l.conns) >= l.s.cfg.MaxConns {
		err = fmt.Errorf("%w: %d connections are open; does each of your processes keep only one?", ErrTooMany, len(l.conns))
	}
	if err == nil {
		if e := l.add(fd); e != nil {
			err = fmt.Errorf("%w: %v", ErrTooMany, e)
		}
	}
	if err != nil {
		l.s.stats.rejected.Add(1)
		l.s.cfg.Logger.Debug("timer connection rejected", "error", err)
		if c != nil {
			c.peer.close()
		}
		_ = l.say(fd, statusOf(err), err.Error())
		unix.Close(fd)
		return
	}
	l.conns[int32(fd)] = c
	if c.peer.fd >= 0 && l.add(c.peer.fd) == nil {
		l.peers[int32(c.peer.fd)], c.watched = c, true
	}
	l.s.stats.connected.Add(1)
	l.s.stats.conns.Add(1)
}

// orphan notes that the process of a connection has ended. Who inherited it may
// still use it, and is told to connect anew.
func (l *socketLoop) orphan(c *socketConn) {
	c.ended = true
	delete(l.peers, int32(c.peer.fd))
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, c.peer.fd, nil)
}

func (l *socketLoop) drop(c *socketConn) {
	delete(l.conns, int32(c.fd))
	delete(l.peers, int32(c.peer.fd))
	unix.Close(c.fd) // takes it out of the set, too
	c.peer.close()
	l.s.stats.conns.Add(-1)
	l.resume()
}

// turn reads a request and answers it. It returns whether the connection is still
// of use.
func (l *socketLoop) turn(c *socketConn) bool {
	n, err := unix.Read(c.fd, l.packet[:])
	if err == unix.EAGAIN || err == unix.EINTR || err == unix.ECONNRESET {
		return true // a reset is told once, and what was sent before lies behind it
	}
	if err != nil || n <= 0 {
		return false
	}
	l.s.stats.requests.Add(1)
	f, err := parseFrame(l.packet[:n])
	if err != nil {
		l.s.stats.malformed.Add(1)
		l.s.cfg.Logger.Debug("malformed timer request", "pid", c.peer.pid, "error", err)
		_ = l.say(c.fd, statusMalformed, err.Error())
		return false
	}
	if err = l.s.handle(c, &f); err != nil {
		l.s.stats.refused.Add(1)
		l.s.cfg.Logger.Debug("timer request refused", "pid", c.peer.pid, "error", err)
	}
	switch {
	case f.kind == frameHeartbeat:
		return true // nobody waits for an answer
	case err != nil:
		err = l.say(c.fd, statusOf(err), err.Error())
	default:
		err = l.send(c.fd, answerDone[:])
	}
	// One that has hung up may have sent more before, such as a release. One that
	// does not read its answers is not waited for.
	return err == nil || err == unix.EPIPE || err == unix.ECONNRESET
}

var answerDone = [answerHead]byte{frameVersion, byte(statusDone)}

func (l *socketLoop) say(fd int, s status, text string) error {
	l.answer = appendAnswer(l.answer[:0], s, text)
	return l.send(fd, l.answer)
}

// send fails with EAGAIN for a client that has not read its answers.
func (l *socketLoop) send(fd int, packet []byte) error {
	for {
		err := unix.Sendto(fd, packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		if err != unix.EINTR {
			return err
		}
	}
}

// A socketConn is a connection and the process that made it.
type socketConn struct {
	fd      int
	peer    *handle
	watched bool      // the loop is told when the peer ends
	ended   bool      // it has
	known   bool      // Config.Owns knew the peer
	attempt int       // in this attempt
	again   time.Time // when Config.Owns may be asked again after a no
}

// alive says whether the process that connected has not ended.
func (c *socketConn) alive() bool {
	if c.watched {
		return !c.ended // a system call less for each request
	}
	return c.peer.alive()
}

// meet finds out who is at the other end.
func (s *SocketServer) meet(fd int) (*socketConn, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: who connects cannot be told: %v", ErrNotOwned, err)
	case int(cred.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%w: it is user %d's, and this server is user %d's", ErrNotOwned, cred.Uid, os.Geteuid())
	case cred.Pid <= 0:
		return nil, fmt.Errorf("%w: it is in a pid namespace that this server does not see", ErrNotOwned)
	}
	peer, err := s.peer(fd, int(cred.Pid))
	if err != nil {
		return nil, err
	}
	return &socketConn{fd: fd, peer: peer}, nil
}

// peer names the process that connected for good. Before Linux 6.5 one that takes
// its number between connect and here is mistaken for it.
func (s *SocketServer) peer(fd, pid int) (*handle, error) {
	if !s.cfg.bare {
		if pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			unix.CloseOnExec(pidfd)
			return &handle{pid: pid, fd: pidfd}, nil
		}
	}
	return openHandle(pid, s.server.cfg.bare)
}

// statusOf says how a reason travels.
func statusOf(err error) status {
	switch {
	case errors.Is(err, ErrTooMany):
		return statusBusy
	case errors.Is(err, ErrInvalid):
		return statusMalformed
	default:
		return statusRefused
	}
}
