package timer

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"
)

// A SocketConfig says how a SocketServer behaves.
type SocketConfig struct {
	// Path is where the socket is made, readable for this user only. A socket that
	// nobody listens at is replaced; anything else there is an error. Its directory
	// may be of any length, the file's own name has 60 bytes at most. Default: a
	// new directory below that for temporary files, which is removed at the end.
	Path string
	// MaxConns bounds how many connections are open; further ones are told so and
	// closed. A worker has one, and so has each process it starts that uses
	// timers. Default 1024.
	MaxConns int
	// Logger gets what operators want to know. Nil: the timer server's.
	Logger *slog.Logger

	bare bool // for tests: a kernel without SO_PEERPIDFD
}

const (
	defaultMaxConns = 1024
	maxSocketName   = 60
)

func (c SocketConfig) complete(server *Server) (SocketConfig, error) {
	if server == nil {
		return c, errors.New("timer socket: want a timer server")
	}
	if c.MaxConns < 0 {
		return c, fmt.Errorf("MaxConns %d: want more than zero, or zero for %d", c.MaxConns, defaultMaxConns)
	}
	if c.MaxConns == 0 {
		c.MaxConns = defaultMaxConns
	}
	if c.Logger == nil {
		c.Logger = server.cfg.Logger
	}
	return c, nil
}

// A Heartbeat is what a worker said of itself.
type Heartbeat struct {
	PID  int
	Time time.Time // when it was read here
	Step int64     // how far it is; -1 when it did not say
}

// SocketStats counts what a SocketServer did.
type SocketStats struct {
	Connected  uint64 // connections that were served
	Rejected   uint64 // connections that were not: another user's, or too many
	Requests   uint64 // packets read
	Malformed  uint64 // of them, those that are no request
	Refused    uint64 // of them, those that were refused
	Heartbeats uint64 // of them, heartbeats that counted

	Conns int // open now
}

// A SocketClientConfig says whom a SocketClient talks to.
type SocketClientConfig struct {
	// Path is the server's socket, EnvSocket's value in a worker.
	Path string
	// PID is whose timers they are: a descendant of this process, or 0 for itself.
	PID int
	// Signal is sent at the deadline. Zero: SIGKILL. Negative: report only.
	Signal syscall.Signal
	// Timeout is how long a request waits for a server that does not answer.
	// Default 5s, at least 1ms.
	Timeout time.Duration
}

const defaultTimeout = 5 * time.Second

func (c SocketClientConfig) complete() (SocketClientConfig, error) {
	var errs []error
	if c.Path == "" {
		errs = append(errs, fmt.Errorf("no Path: want that of a timer socket, as in %s", EnvSocket))
	}
	if c.PID < 0 {
		errs = append(errs, fmt.Errorf("no PID %d: want a process number, or 0 for this process", c.PID))
	}
	if c.Signal > maxSignal {
		errs = append(errs, fmt.Errorf("no Signal %d: want at most %d", c.Signal, maxSignal))
	}
	switch {
	case c.Timeout == 0:
		c.Timeout = defaultTimeout
	case c.Timeout < time.Millisecond:
		errs = append(errs, fmt.Errorf("short Timeout %v: want 1ms or more, or zero for %v", c.Timeout, defaultTimeout))
	}
	return c, errors.Join(errs...)
}
