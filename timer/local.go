package timer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// A LocalQueue is a Queue in memory, between the clients and the server of one
// program. Its methods may be called concurrently. The zero value is ready to use.
// Source: MultiprocessingRequestQueue in local_timer.py.
type LocalQueue struct {
	// Limit bounds how many requests wait; it is not changed after first use.
	// Default 65,536.
	Limit int

	mu       sync.Mutex // guards the rest
	requests []Request
	arrived  chan struct{} // closed when requests come; nil while nobody waits
}

const defaultLimit = 1 << 16

// ErrQueueFull is returned for a request when a LocalQueue has as many as it may hold:
// no server takes them.
var ErrQueueFull = errors.New("timer queue full")

// Put adds requests: all of them, or none with an ErrQueueFull when there is no room.
func (q *LocalQueue) Put(requests ...Request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit := q.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	if len(q.requests)+len(requests) > limit {
		return fmt.Errorf("%w: %d of %d wait; does a server run?", ErrQueueFull, len(q.requests), limit)
	}
	q.requests = append(q.requests, requests...)
	if q.arrived != nil {
		close(q.arrived)
		q.arrived = nil
	}
	return nil
}

// Size is how many requests wait.
func (q *LocalQueue) Size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.requests)
}

// Get takes up to n requests. It returns when it has n, or has waited for timeout,
// with those that came; with a timeout of zero or less, those that are there.
func (q *LocalQueue) Get(n int, timeout time.Duration) []Request {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var got []Request
	for n > 0 {
		more, arrived := q.take(n)
		got = append(got, more...)
		if n -= len(more); n == 0 {
			break
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return got
		}
	}
	return got
}

// take returns up to n requests and, where there are fewer, a channel that is
// closed when more come.
func (q *LocalQueue) take(n int) ([]Request, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n < len(q.requests) {
		got := q.requests[:n:n]
		q.requests = q.requests[n:]
		return got, nil
	}
	got := q.requests
	q.requests = nil
	if len(got) == n {
		return got, nil
	}
	if q.arrived == nil {
		q.arrived = make(chan struct{})
	}
	return got, q.arrived
}

// Serve hands the requests to server as they come, until ctx is done; those that
// wait then are handed over too. Refused ones are logged by their reason and
// dropped, as a queue brings no answer. Several may serve one queue.
// Source: LocalTimerServer in local_timer.py.
func (q *LocalQueue) Serve(ctx context.Context, server *Server) {
	for {
		batch, arrived := q.take(serveBatch)
		if len(batch) > 0 {
			if err := server.Register(batch); err != nil {
				server.cfg.Logger.Warn("timer requests refused", "run_id", server.cfg.RunID, "error", err)
			}
			continue
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return
		}
	}
}

const serveBatch = 1024

// A LocalClient puts its requests on a queue. Its methods may be called
// concurrently.
// Source: LocalTimerClient in local_timer.py.
type LocalClient struct {
	Queue *LocalQueue
	// PID is whose timers they are: a child of this program, or 0 for this program
	// itself, which its own server then kills.
	PID int
	// Signal is sent at the deadline. Zero: SIGKILL. Negative: report only.
	Signal syscall.Signal
}

// Acquire implements Client. It returns an ErrQueueFull when nobody takes requests.
func (c *LocalClient) Acquire(scopeID string, expiration time.Time) error {
	at, err := deadline(expiration)
	if err != nil {
		return err
	}
	return c.Queue.Put(Request{c.pid(), scopeID, at, killUnless(c.Signal)})
}

// Release implements Client. It returns an ErrQueueFull when nobody takes requests.
func (c *LocalClient) Release(scopeID string) error {
	return c.Queue.Put(Request{c.pid(), scopeID, release, 0})
}

func (c *LocalClient) pid() int {
	if c.PID == 0 {
		return os.Getpid()
	}
	return c.PID
}

// deadline is what an acquire carries. A time before 1970 is long past, and its
// negative number would release.
func deadline(t time.Time) (float64, error) {
	if t.IsZero() {
		return 0, fmt.Errorf("%w: no expiration", ErrInvalid)
	}
	return max(seconds(t), 0), nil
}

// killUnless is a client's choice of signal.
func killUnless(s syscall.Signal) syscall.Signal {
	switch {
	case s == 0:
		return syscall.SIGKILL
	case s < 0:
		return 0
	}
	return s
}
