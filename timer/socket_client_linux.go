package timer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/wire/unixsock"
)

// conns are connections that nobody uses at the moment.
type conns struct {
	mu     sync.Mutex // guards the rest
	idle   []int
	closed bool
}

const maxIdle = 4

// Acquire implements Client: the server has the timer when it returns. A refusal
// wraps ErrNotOwned, ErrTooMany or ErrInvalid; without a server the
// error wraps syscall.ENOENT or ECONNREFUSED, and os.ErrDeadlineExceeded when it
// does not answer.
func (c *SocketClient) Acquire(scopeID string, expiration time.Time) error {
	r, err := acquisition(c.PID, scopeID, expiration, c.Signal)
	if err != nil {
		return err
	}
	return c.exchange(&frame{kind: frameAcquire, signal: max(r.Signal, 0), time: r.Seconds()}, scopeID)
}

// Release implements Client. A server that is gone is not an error: its timers are
// gone with it.
func (c *SocketClient) Release(scopeID string) error {
	err := c.exchange(&frame{kind: frameRelease}, scopeID)
	if gone(err) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}

// Heartbeat says that the process is alive, and how far it is; a negative step
// says nothing of that. It waits for nobody and learns of no refusal. An error
// says that it was not sent.
func (c *SocketClient) Heartbeat(step int64) error {
	return c.exchange(&frame{kind: frameHeartbeat, step: max(step, -1)}, "")
}

// Close closes the connections. The timers stay.
func (c *SocketClient) Close() error {
	c.conns.mu.Lock()
	defer c.conns.mu.Unlock()
	for _, fd := range c.conns.idle {
		unix.Close(fd)
	}
	c.conns.idle, c.conns.closed = nil, true
	return nil
}

func (c *SocketClient) exchange(f *frame, scopeID string) error {
	if len(scopeID) > maxScope {
		return fmt.Errorf("%w: scope of %d bytes: want at most %d", ErrInvalid, len(scopeID), maxScope)
	}
	if c.Path == "" {
		return fmt.Errorf("%w: no path of a timer socket, as %s has", ErrInvalid, EnvSocket)
	}
	f.pid, f.scope = c.PID, []byte(scopeID)
	packet := appendFrame(make([]byte, 0, frameHead+len(scopeID)), f)
	for {
		fd, used, err := c.take()
		if err != nil {
			return fmt.Errorf("timer socket %s: %w", c.Path, err)
		}
		err = talk(fd, f.kind, packet)
		_, answered := errors.AsType[*wordedError](err)
		full := f.kind == frameHeartbeat && errors.Is(err, os.ErrDeadlineExceeded)
		if err == nil || full || answered && !errors.Is(err, ErrInvalid) {
			c.put(fd)
			return err
		}
		unix.Close(fd)
		if !used || !gone(err) {
			return fmt.Errorf("timer socket %s: %w", c.Path, err)
		}
		// There may be a new server at the same path.
	}
}

// take returns a connection, and whether it was used before.
func (c *SocketClient) take() (fd int, used bool, err error) {
	c.conns.mu.Lock()
	closed := c.conns.closed
	if n := len(c.conns.idle); n > 0 {
		fd, used = c.conns.idle[n-1], true
		c.conns.idle = c.conns.idle[:n-1]
	}
	c.conns.mu.Unlock()
	switch {
	case closed:
		return -1, false, os.ErrClosed
	case !used:
		fd, err = c.connect()
	}
	return fd, used, err
}

func (c *SocketClient) put(fd int) {
	c.conns.mu.Lock()
	defer c.conns.mu.Unlock()
	if c.conns.closed || len(c.conns.idle) == maxIdle {
		unix.Close(fd)
		return
	}
	c.conns.idle = append(c.conns.idle, fd)
}

// connect returns a blocking socket, with time limits of the kernel: a thread that
// waits in the kernel is woken sooner than one that Go's poller wakes.
func (c *SocketClient) connect() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(max(cmp.Or(c.Timeout, defaultTimeout), time.Millisecond)))
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if err == nil {
		err = unixsock.WithAddress(c.Path, func(addr string) error {
			_, err := retry(func() (int, error) { return 0, unix.Connect(fd, &unix.SockaddrUnix{Name: addr}) })
			return err
		})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect: %w", late(err))
	}
	return fd, nil
}

// gone reports whether the server closed the connection.
func gone(err error) bool { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }

// talk sends a packet and reads the answer, if there is one.
func talk(fd int, kind frameKind, packet []byte) error {
	flags := unix.MSG_NOSIGNAL
	if kind == frameHeartbeat {
		flags |= unix.MSG_DONTWAIT
	}
	_, err := retry(func() (int, error) { return 0, unix.Sendto(fd, packet, flags, nil) })
	if err == nil && kind == frameHeartbeat {
		return nil
	}
	// With a time limit the kernel does not continue after a signal by itself: retry does.
	var answer [maxAnswer + 1]byte
	read := func() (int, error) { return unix.Read(fd, answer[:]) }
	var n int
	if err == nil {
		n, err = retry(read)
	}
	if err == unix.EAGAIN {
		if kind == frameAcquire {
			// Its caller no longer waits for it, but the server may yet read it.
			undo := append([]byte{packet[0], byte(frameRelease)}, packet[2:]...)
			_ = unix.Sendto(fd, undo, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil)
		}
		return late(err)
	}
	if err != nil {
		// What the server said before it hung up lies behind the error.
		if n, _ = retry(read); n <= 0 {
			return err
		}
	}
	if n == 0 {
		return unix.ECONNRESET
	}
	return parseAnswer(answer[:n])
}

func late(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("the server does not answer: %w", os.ErrDeadlineExceeded)
	}
	return err
}
