package timer

import (
	"syscall"
	"time"
)

// A Heartbeat is what a worker said of itself.
type Heartbeat struct {
	PID  int
	Time time.Time // when it was read here
	Step int64     // how far it is; -1 when it did not say
	// PerSecond is how many steps it does in a second, of the last half minute to minute; 0 where
	// that is not known yet, or it says nothing any more.
	PerSecond float64
}

// A SocketClient is a Client that talks to a SocketServer. It connects when it is
// first used. Its methods may be called concurrently; each uses a connection of its
// own meanwhile. The fields are not changed after first use, and a SocketClient is
// not copied.
type SocketClient struct {
	// Path is the server's socket, EnvSocket's value in a worker.
	Path string
	// PID is whose timers they are: a descendant of this process, or 0 for itself.
	PID int
	// Signal is sent at the deadline. Zero: SIGKILL. Negative: report only.
	Signal syscall.Signal
	// Timeout is how long a request waits for a server that does not answer.
	// Default 5s, at least 1ms.
	Timeout time.Duration

	conns conns
}

var _ Client = (*SocketClient)(nil)

const defaultTimeout = 5 * time.Second

// acceptPause is how long a server rests when no descriptors are left, or a queue does not wait.
const acceptPause = 100 * time.Millisecond
