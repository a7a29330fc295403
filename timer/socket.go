package timer

import (
	"cmp"
	"fmt"
	"log/slog"
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
	if c.MaxConns < 0 {
		return c, fmt.Errorf("MaxConns %d: want more than zero, or zero for %d", c.MaxConns, defaultMaxConns)
	}
	c.MaxConns = cmp.Or(c.MaxConns, defaultMaxConns)
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
