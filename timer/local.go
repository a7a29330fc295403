package timer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/wait/sleep"
)

// A RequestQueue has the requests that clients have made and no server has taken yet. A program
// may bring its own to StartLocal.
// Source: RequestQueue in api.py.
type RequestQueue interface {
	// Size is how many requests wait. Only Get makes it smaller.
	Size() int
	// Get takes up to n requests. It waits until there are n, or ctx is done, and returns those
	// that came; when ctx is done before the call, those that are there.
	Get(ctx context.Context, n int) []Request
}

// A LocalQueue is the RequestQueue of a program. Its methods may be called concurrently. The zero
// value is ready to use. It has room for 65,536 requests.
// Source: MultiprocessingRequestQueue in local_timer.py.
type LocalQueue struct {
	mu       sync.Mutex // guards the rest
	requests []Request
	arrived  chan struct{} // closed when requests come; nil while nobody waits
}

const maxQueue = 1 << 16

// Put adds requests: all, or none with ErrTooMany when there is no room for them.
func (q *LocalQueue) Put(requests ...Request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.requests); n+len(requests) > maxQueue {
		return fmt.Errorf("%w: %d requests wait in the queue; start a server with StartLocal", ErrTooMany, n)
	}
	q.requests = append(q.requests, requests...)
	if q.arrived != nil {
		close(q.arrived)
		q.arrived = nil
	}
	return nil
}

// Size implements RequestQueue.
func (q *LocalQueue) Size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.requests)
}

// Get implements RequestQueue.
func (q *LocalQueue) Get(ctx context.Context, n int) (got []Request) {
	for {
		more, arrived := q.take(n - len(got))
		got = append(got, more...)
		if arrived == nil {
			return got
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			more, _ = q.take(n - len(got))
			return append(got, more...)
		}
	}
}

// take takes up to n requests and, where there are fewer, returns a channel that is closed when
// more come.
func (q *LocalQueue) take(n int) (got []Request, arrived <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	have := min(max(n, 0), len(q.requests))
	got, q.requests = q.requests[:have:have], q.requests[have:]
	if have >= n {
		return got, nil
	}
	if q.requests = nil; q.arrived == nil {
		q.arrived = make(chan struct{})
	}
	return got, q.arrived
}

// A LocalClient is a Client that puts its requests into a queue of this program. A child process
// has a queue of its own memory; it uses FromEnv with LocalServer.Env.
// Source: LocalTimerClient in local_timer.py.
type LocalClient struct {
	// Queue is a LocalQueue, or one that the program brings.
	Queue interface {
		Put(requests ...Request) error
	}
	// PID is whose timers they are: a child of this program, or 0 for the program itself.
	PID int
	// Signal is sent at the deadline. Zero: SIGKILL. Negative: report only.
	Signal syscall.Signal
}

var _ Client = (*LocalClient)(nil)

// Acquire implements Client. The request waits in the queue when it returns; a server that refuses
// it says so in its log.
func (c *LocalClient) Acquire(scopeID string, expiration time.Time) error {
	r, err := acquisition(c.PID, scopeID, expiration, c.Signal)
	if err != nil {
		return fmt.Errorf("acquire timer %.64q: %w", scopeID, err)
	}
	return c.put(r)
}

// Release implements Client.
func (c *LocalClient) Release(scopeID string) error {
	return c.put(Request{PID: cmp.Or(c.PID, os.Getpid()), ScopeID: scopeID})
}

func (c *LocalClient) put(r Request) error {
	if own, ok := c.Queue.(*LocalQueue); c.Queue == nil || ok && own == nil {
		return fmt.Errorf("%w: Queue is nil; want the one that StartLocal got", ErrInvalid)
	}
	return c.Queue.Put(r)
}

// A LocalServer is a Server that runs, with what feeds it: a queue for this program and, on Linux,
// a socket for its child processes.
// Source: LocalTimerServer in local_timer.py.
type LocalServer struct {
	*Server
	queue  RequestQueue
	call   life
	socket *SocketServer // nil where there is none
}

// StartLocal serves queue and, on Linux, a socket in the temporary directory. The caller calls Close.
func StartLocal(cfg Config, queue RequestQueue) (*LocalServer, error) {
	if own, ok := queue.(*LocalQueue); queue == nil || ok && own == nil {
		return nil, errors.New("timer server: queue is nil; want a RequestQueue, such as a *timer.LocalQueue")
	}
	server, err := NewServer(cfg)
	if err != nil {
		return nil, err
	}
	l := &LocalServer{Server: server, queue: queue}
	l.socket, err = ListenSocket(server, "")
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, errors.Join(err, server.Close())
	}
	server.start()
	server.feed("queue", &l.call, l.serve)
	if l.socket != nil {
		server.feed("socket", &l.socket.call, l.socket.serve)
	}
	return l, nil
}

// Env has the variables by which FromEnv finds the server in a child process, for os/exec.Cmd.Env.
// It is nil where there is no socket: children need StartFIFO there.
func (l *LocalServer) Env() []string {
	if l.socket == nil {
		return nil
	}
	return []string{EnvSocket + "=" + l.socket.Path()}
}

// Close takes the requests that wait and ends the server, after Config.Reap and Config.OnExpiry;
// those must not call it. It may be called again.
// Source: TimerServer.stop in api.py.
func (l *LocalServer) Close() error {
	l.call.close()
	var err error
	if l.socket != nil {
		err = l.socket.Close()
	}
	return errors.Join(err, l.Server.Close())
}

// serve registers what the queue brings.
func (l *LocalServer) serve(ctx context.Context) error {
	quiet := limiter{server: l.Server}
	defer quiet.end()
	for ctx.Err() == nil {
		requests := l.queue.Get(ctx, max(1, l.queue.Size()))
		quiet.register(requests)
		if len(requests) == 0 { // a queue that does not wait
			_ = sleep.For(ctx, acceptPause)
		}
	}
	quiet.register(l.queue.Get(ctx, l.queue.Size()))
	return nil
}

// Expires acquires a timer that expires after the given time from now. The caller defers
// release, which releases it once. Without a scopeID, the timer has one of its own, which
// no other call has: the caller's file and line, and a number.
// Source: expires in api.py.
func Expires(c Client, after time.Duration, scopeID string) (release func() error, err error) {
	if c == nil {
		return nil, fmt.Errorf("%w: client is nil; FromEnv returns that of a worker", ErrInvalid)
	}
	if scopeID == "" {
		_, file, line, _ := runtime.Caller(1)
		scopeID = fmt.Sprintf("%s#%d~%d", file[max(0, len(file)-maxStem):], line, scopes.Add(1))
	}
	if err := c.Acquire(scopeID, time.Now().Add(after)); err != nil {
		return nil, err
	}
	return sync.OnceValue(func() error { return c.Release(scopeID) }), nil
}

// maxStem is how much of a path is in a scope: a FIFO's line has room for it.
const maxStem = 1000

var scopes atomic.Uint64 // numbers the scopes that Expires makes
