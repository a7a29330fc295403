package timer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A SocketClient is a Client that talks to a SocketServer. Its methods may be
// called concurrently; each uses a connection of its own meanwhile. Close frees
// them.
type SocketClient struct {
	cfg    SocketClientConfig
	signal syscall.Signal

	mu     sync.Mutex // guards the rest
	idle   []int
	closed bool
}

const maxIdle = 4

// NewSocketClient checks cfg. It connects when it is first used.
func NewSocketClient(cfg SocketClientConfig) (*SocketClient, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("timer socket: %w", err)
	}
	return &SocketClient{cfg: cfg, signal: max(cmp.Or(cfg.Signal, syscall.SIGKILL), 0)}, nil
}

// Acquire implements Client: the server has the timer when it returns. A refusal
// wraps ErrNotOwned, ErrNoProcess, ErrTooMany or ErrInvalid; without a server the
// error wraps syscall.ENOENT or ECONNREFUSED, and os.ErrDeadlineExceeded when it
// does not answer.
func (c *SocketClient) Acquire(scopeID string, expiration time.Time) error {
	at, err := acquisition(expiration)
	if err != nil {
		return err
	}
	return c.exchange(&frame{kind: frameAcquire, signal: c.signal, time: at}, scopeID)
}

// Release implements Client. A server that is gone is no error: its timers are
// gone with it.
func (c *SocketClient) Release(scopeID string) error {
	err := c.exchange(&frame{kind: frameRelease}, scopeID)
	_, gone := errors.AsType[goneError](err)
	if gone || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
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
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, fd := range idle {
		unix.Close(fd)
	}
	return nil
}

func (c *SocketClient) exchange(f *frame, scopeID string) error {
	if len(scopeID) > maxScope {
		return fmt.Errorf("%w: scope of %d bytes: want at most %d", ErrInvalid, len(scopeID), maxScope)
	}
	f.pid, f.scope = c.cfg.PID, []byte(scopeID)
	packet := appendFrame(make([]byte, 0, frameHead+len(scopeID)), f)
	for {
		fd, used, err := c.take()
		if err != nil {
			return err
		}
		err = talk(fd, f.kind, packet)
		_, answered := errors.AsType[*answerError](err)
		full := f.kind == frameHeartbeat && errors.Is(err, os.ErrDeadlineExceeded)
		if err == nil || full || answered && !errors.Is(err, ErrInvalid) {
			c.put(fd)
			return err
		}
		unix.Close(fd)
		if _, gone := errors.AsType[goneError](err); !used || !gone {
			return fmt.Errorf("timer socket %s: %w", c.cfg.Path, err)
		}
		// There may be a new server at the same path.
	}
}

// take returns a connection, and whether it was used before.
func (c *SocketClient) take() (fd int, used bool, err error) {
	c.mu.Lock()
	closed := c.closed
	if n := len(c.idle); n > 0 {
		fd, used = c.idle[n-1], true
		c.idle = c.idle[:n-1]
	}
	c.mu.Unlock()
	switch {
	case closed:
		return -1, false, fmt.Errorf("timer socket %s: %w", c.cfg.Path, os.ErrClosed)
	case used:
		return fd, true, nil
	}
	fd, err = c.connect()
	return fd, false, err
}

func (c *SocketClient) put(fd int) {
	c.mu.Lock()
	keep := !c.closed && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, fd)
	}
	c.mu.Unlock()
	if !keep {
		unix.Close(fd)
	}
}

// connect returns a blocking socket, with time limits of the kernel: a thread that
// waits in the kernel is woken sooner than one that Go's poller wakes.
func (c *SocketClient) connect() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("timer socket: %w", err)
	}
	limit := unix.NsecToTimeval(int64(c.cfg.Timeout))
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if err == nil {
		err = withAddress(c.cfg.Path, func(addr string) error {
			_, err := retry(func() (int, error) { return 0, unix.Connect(fd, &unix.SockaddrUnix{Name: addr}) })
			return err
		})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("timer socket %s: connect: %w", c.cfg.Path, late(err))
	}
	return fd, nil
}

// A goneError says that the server closed the connection.
type goneError struct{ error }

func (e goneError) Unwrap() error { return e.error }

// talk sends a packet and reads the answer, if there is one.
func talk(fd int, kind frameKind, packet []byte) error {
	flags := unix.MSG_NOSIGNAL
	if kind == frameHeartbeat {
		flags |= unix.MSG_DONTWAIT
	}
	var answer [maxAnswer + 1]byte
	var n int
	_, err := retry(func() (int, error) { return 0, unix.Sendto(fd, packet, flags, nil) })
	if err == nil && kind == frameHeartbeat {
		return nil
	}
	if err == nil {
		n, err = read(fd, answer[:])
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
		if n, _ = read(fd, answer[:]); n <= 0 {
			return goneError{err}
		}
	}
	if n == 0 {
		return goneError{unix.ECONNRESET}
	}
	return parseAnswer(answer[:n])
}

func read(fd int, to []byte) (int, error) {
	// With a time limit the kernel does not go on after a signal by itself.
	return retry(func() (int, error) { return unix.Read(fd, to) })
}

func late(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("the server does not answer: %w", os.ErrDeadlineExceeded)
	}
	return err
}
