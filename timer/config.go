package timer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"
)

// A Config says how a server behaves. It is not changed after it was passed on.
type Config struct {
	// RunID appears in the log.
	RunID string
	// MaxInterval is how late a step of the wall clock may be noticed while timers
	// run; it costs a wake-up each. Where the kernel reports such steps (Linux),
	// there are none. Default 10s.
	// Source: max_interval of FileTimerServer.
	MaxInterval time.Duration
	// Owns reports whether a process may have timers here. It is asked when a process
	// registers its first timer, and again after a no; never with a lock held, but
	// from several goroutines. Nil: every process that exists.
	Owns func(pid int) bool
	// Reap is called when timers of a process have expired and one of them wants
	// it killed. It may take its time (to keep evidence) and should end with
	// Expiry.Kill, or kill in another way: nil says that the process is killed. Each
	// process has a goroutine of its own, so others are not delayed. Meanwhile requests of
	// that process are dropped. ctx ends with the server, which waits for Reap. An error is logged, and then there is no
	// call of OnExpiry for the kill; the process's timers are gone all the same, and the
	// kill is not tried again. Nil: the signal is sent at once.
	Reap func(ctx context.Context, e *Expiry) error
	// OnExpiry is called for each timer that has expired, and with killed once more for
	// the one whose signal was sent. One call is made at a time, in order, by a goroutine
	// that writes the log, too, and delays nothing else. May be nil.
	// Source: log_event in file_based_local_timer.py, "timer expired" and "kill worker
	// process".
	OnExpiry func(r Request, killed bool)
	// MaxTimers bounds how many timers may run; further ones are refused. Default
	// 1,048,576 (some 200 MiB when all run).
	MaxTimers int
	// Logger gets what operators want to know. Nil: slog.Default().
	Logger *slog.Logger

	plain bool             // for tests: no timerfd
	bare  bool             // for tests: no pidfds
	fds   int              // how many pidfds at most: processes beyond it are told apart by their start time
	conns int              // how many connections of a SocketServer at most
	now   func() time.Time // for tests: a wall clock that steps
}

const (
	defaultInterval  = 10 * time.Second
	defaultMaxTimers = 1 << 20
	// maxScope bounds a scope's length in bytes; PyTorch's client cannot send more
	// than 4096 with everything around it.
	maxScope = 4096
	// scopeShare is how many bytes of scopes are allowed per timer, on average.
	scopeShare = 128
	// maxConns bounds a socket's connections. A worker has one, and so has each
	// process it starts that uses timers.
	maxConns = 1024
)

func (c Config) complete() (Config, error) {
	var errs []error
	if c.MaxInterval < 0 {
		errs = append(errs, fmt.Errorf("MaxInterval %v: want more than zero, or zero for %v", c.MaxInterval, defaultInterval))
	}
	if c.MaxTimers < 0 {
		errs = append(errs, fmt.Errorf("MaxTimers %d: want more than zero, or zero for %d", c.MaxTimers, defaultMaxTimers))
	}
	c.MaxInterval, c.MaxTimers = cmp.Or(c.MaxInterval, defaultInterval), cmp.Or(c.MaxTimers, defaultMaxTimers)
	c.Logger = cmp.Or(c.Logger, slog.Default()).With("run_id", c.RunID)
	c.fds, c.conns = cmp.Or(c.fds, share(maxPidfds)), cmp.Or(c.conns, share(maxConns))
	if c.now == nil {
		c.now = time.Now
	}
	return c, errors.Join(errs...)
}

// An Expiry is what Config.Reap gets.
type Expiry struct {
	PID int
	// Timers are the expired ones in order of time, up to the first that wants a
	// signal sent: the last of them.
	Timers []Request
	// Signal is that timer's; Config.Reap may choose another.
	Signal syscall.Signal

	handle *handle
}

// Kill sends the signal to the process that registered the timers, and to no other
// that has its number now. A process that is gone is not an error. It may only be
// called while Config.Reap runs.
func (e *Expiry) Kill() error {
	if e.handle == nil {
		return errors.New("Kill: the Expiry is not one that Config.Reap got")
	}
	return e.handle.send(e.Signal)
}
