package tcpstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/store"
)

// defaultTimeout is the time limit of a Client that is given none.
// Source: Store::kDefaultTimeout.
const defaultTimeout = 300 * time.Second

// A ClientConfig says whom to connect to.
type ClientConfig struct {
	// Addr is host:port, or several with commas between them, all of which are the
	// server's. All IP addresses are tried, the first that answers is taken.
	Addr string
	// Timeout bounds Dial, and each call whose context has no deadline of its
	// own. Default 5 min.
	Timeout time.Duration
	// WorldSize, if above 0, counts this client among the workers that have
	// joined, for which the process that hosts the server may be waiting
	// (Server.WaitForWorkers).
	WorldSize int
	// KeepAlive is how long a connection outlives the host at its other end: one
	// that has vanished, or been cut off, ends the calls that are blocked and
	// the session. Below 0 nobody asks. Default 15 s. The system counts in
	// seconds. On Linux a connection also ends if the server takes
	// nothing of what was sent for that long.
	KeepAlive time.Duration
	// MaxValue is the length of the longest value that is accepted, in bytes: a reply that
	// announces a longer one ends the connection, and without Last the client. Default 1 GiB.
	MaxValue int64
	// Guard, if not nil, is passed by every connection first, which only a server with one
	// can. See ServerConfig.
	Guard Guard
	// OnRetry, if not nil, is called when an attempt to connect has failed and
	// another one follows, and each five seconds in which an attempt has no answer,
	// with how long that may continue.
	OnRetry func(err *ConnectError, left time.Duration)
	// Logger is told once when the server does not answer at first and the
	// client keeps trying. Default slog.Default().
	Logger *slog.Logger
}

// A Client is a Store at a TCPStore server: ours, or PyTorch's. It puts "/"
// before every key, as torch's client does. It has one connection for what is answered at once,
// and further ones, made when needed, for calls that block, so that none of
// them holds up another call.
//
// The protocol has no reply to what only writes. The client asks the server to
// check an empty list of keys in the same breath and waits for the answer, so
// that a call which has returned has taken effect and errors are seen by the call that
// caused them. (torch's client returns when the bytes are sent.)
//
// A connection that ends is not made again: what was stored there
// may be gone. All calls then return the same error. Where somebody else sees to
// it that the server is the same, Last makes the client continue.
type Client struct {
	cfg     ClientConfig
	timeout time.Duration
	dialer  *dialer
	remote  net.Addr // of the first connection
	local   net.Addr
	lasting atomic.Bool
	life    context.Context // done when no call can succeed any more, with the cause why
	end     context.CancelCauseFunc

	// main holds the line for what is answered at once, nil if there is none. It is a lock, too: who has taken the
	// line out is alone with it, and who waits for it can give up with a context, as one cannot with a mutex.
	main chan *line // of one

	mu    sync.Mutex // guards the rest
	lines map[*line]struct{}
	idle  []*line // of blocking calls
}

var _ store.Store = (*Client)(nil)

// keepIdle is how many connections of blocking calls are kept for the next.
const keepIdle = 4

// Dial connects to a server. It keeps trying while the server cannot be found
// or does not answer, as torch's does, until the timeout has passed or the
// context is done. The caller closes the client.
//
// If it gives up the error is a *ConnectError.
func Dial(ctx context.Context, cfg ClientConfig) (*Client, error) {
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("tcpstore: ClientConfig.Timeout is %v, must not be negative", cfg.Timeout)
	}
	c := &Client{cfg: cfg, dialer: newDialer(cfg), main: make(chan *line, 1), lines: map[*line]struct{}{}}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.timeout = c.dialer.timeout
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.remote, c.local = l.nc.RemoteAddr(), l.nc.LocalAddr()
	if c.main <- l; cfg.WorldSize > 0 {
		if _, err := c.number(ctx, &request{query: qAdd, op: "add", key: initKey, bare: true, n: 1}); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Addr returns the address that the client was given.
func (c *Client) Addr() string { return c.cfg.Addr }

// Remote returns the IP address and port that Dial found the server at.
func (c *Client) Remote() net.Addr { return c.remote }

// Local returns the IP address and port of this host that Dial reached the server
// from.
func (c *Client) Local() net.Addr { return c.local }

// Close ends all connections. Calls that are blocked, and all later ones, return
// store.ErrClosed. It may be called again.
func (c *Client) Close() error {
	c.fail(store.ErrClosed)
	return nil
}

// fail makes every call fail from now on.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(err)
	for l := range c.lines {
		l.nc.Close()
	}
	c.idle = nil
}

// failure returns why no call can succeed any more, or nil.
func (c *Client) failure() error { return context.Cause(c.life) }

// dial makes a connection that is ready for requests.
func (c *Client) dial(ctx context.Context) (*line, error) {
	if c.lasting.Load() {
		return c.redial(ctx)
	}
	nc, err := c.dialer.dial(ctx, handshake)
	if err != nil {
		return nil, err
	}
	l := newLine(nc)
	return l, c.adopt(l)
}

// adopt counts a new line among the client's.
func (c *Client) adopt(l *line) error {
	l.most = cmp.Or(c.cfg.MaxValue, maxReply)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.failure(); err != nil {
		l.nc.Close()
		return err
	}
	c.lines[l] = struct{}{}
	return nil
}

func (c *Client) drop(l *line) {
	l.nc.Close()
	c.mu.Lock()
	delete(c.lines, l)
	c.mu.Unlock()
}

// waitLine returns a line that nobody else uses.
func (c *Client) waitLine(ctx context.Context) (*line, error) {
	if err := c.failure(); err != nil {
		return nil, err
	}
	var l *line
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		l = c.idle[n-1]
		c.idle = c.idle[:n-1]
	}
	c.mu.Unlock()
	return c.renewed(ctx, l)
}

func (c *Client) giveBack(l *line) {
	c.mu.Lock()
	kept := c.failure() == nil && len(c.idle) < keepIdle
	if kept {
		c.idle = append(c.idle, l)
	}
	c.mu.Unlock()
	if !kept {
		c.drop(l)
	}
}

// A LimitError is returned for keys and values that are more than a server takes, which
// would close the connection: keys of 8191 bytes with their prefixes, values of 8 MiB, and
// 131,072 keys in one call.
type LimitError struct {
	What     string // What is "key", "value" or "number of keys"
	Size     int    // Size is in bytes, or the number of keys
	AtMost   int
	KeyStart string // KeyStart is the start of the key concerned
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("tcpstore: %s of %d at %q, a TCPStore takes at most %d", e.What, e.Size, e.KeyStart, e.AtMost)
}

// call sends a request that is answered at once and reads the reply.
func (c *Client) call(ctx context.Context, r *request, reply func(l *line) error) (err error) {
	if err := r.check(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var l *line
	select {
	case l = <-c.main:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { c.main <- l }()
	if err := c.failure(); err != nil {
		return err
	}
	for tries := 1; ; tries++ {
		if l, err = c.renewed(ctx, l); err != nil {
			return err
		}
		l.put(r)
		err = l.exchange(ctx, c.timeout, reply)
		if err == nil {
			return nil
		}
		old := l
		l = nil
		c.drop(old)
		if !repeatable(r.op) || !c.again(ctx, err, tries) {
			return c.explain(ctx, old, r, err)
		}
	}
}

// write is call for a silent query.
func (c *Client) write(ctx context.Context, r *request) error {
	return c.call(ctx, r, func(l *line) error { return l.expect(ready) })
}

// number is call for a query that is answered by a number.
func (c *Client) number(ctx context.Context, r *request) (n int64, err error) {
	err = c.call(ctx, r, func(l *line) error {
		n, err = l.readInt()
		return err
	})
	return n, err
}

// bytes is call for a query that is answered by a value.
func (c *Client) bytes(ctx context.Context, r *request) (value []byte, err error) {
	err = c.call(ctx, r, func(l *line) error {
		value, err = l.bytes()
		return err
	})
	return value, err
}

// explain turns an error of a line, which is lost, into the caller's.
func (c *Client) explain(ctx context.Context, l *line, r *request, err error) error {
	if failed := c.failure(); failed != nil {
		return failed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errLate) {
		return &store.TimeoutError{Op: r.op, Keys: r.awaited(), After: c.timeout}
	}
	lost := &LostError{Addr: c.cfg.Addr, Remote: l.nc.RemoteAddr().String(), Op: r.op, Err: err}
	if !c.lasting.Load() {
		c.fail(lost)
	}
	return lost
}

// wait sends a WAIT or BARRIER and blocks until it is answered.
func (c *Client) wait(ctx context.Context, r *request) error {
	if err := r.check(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for tries := 1; ; tries++ {
		l, err := c.waitLine(ctx)
		if err != nil {
			return err
		}
		l.put(r)
		began := time.Now()
		usable, err := l.await(ctx, c.timeout)
		if usable {
			c.giveBack(l)
		} else {
			c.drop(l)
		}
		if err == nil {
			return nil
		}
		if time.Since(began) > max(c.cfg.keepAlive().limit(), time.Second) {
			tries = 1 // it has waited for a while: the connection did not end at once
		}
		if !repeatable(r.op) || !c.again(ctx, err, tries) {
			return c.explain(ctx, l, r, err)
		}
	}
}

// Set implements store.Store.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	return c.write(ctx, &request{query: qSet, op: "set", key: key, values: [2][]byte{value}})
}

// Get implements store.Store. If the key is deleted while Get is under way it
// returns an empty value, as torch's does.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	if err := c.exist(ctx, "get", key); err != nil {
		return nil, err
	}
	return c.bytes(ctx, &request{query: qGet, op: "get", key: key})
}

// exist blocks until all keys exist.
func (c *Client) exist(ctx context.Context, op string, keys ...string) error {
	all, err := c.Check(ctx, keys...)
	if err != nil || all {
		return err
	}
	return c.wait(ctx, &request{query: qWait, op: op, keys: keys})
}

// Add implements store.Store.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	return c.number(ctx, &request{query: qAdd, op: "add", key: key, n: delta})
}

// CompareAndSet implements store.Store.
func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	values := [2][]byte{expected, desired}
	return c.bytes(ctx, &request{query: qCompareSet, op: "compare and set", key: key, values: values})
}

// Wait implements store.Store.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	return c.exist(ctx, "wait", keys...)
}

// Check implements store.Store.
func (c *Client) Check(ctx context.Context, keys ...string) (all bool, err error) {
	err = c.call(ctx, &request{query: qCheck, op: "check", keys: keys}, func(l *line) error {
		answer, err := l.readByte()
		if err == nil && answer > notReady {
			err = fmt.Errorf("CHECK was answered by %d", answer)
		}
		all = answer == ready
		return err
	})
	return all && err == nil, err
}

// Append implements store.Store.
func (c *Client) Append(ctx context.Context, key string, value []byte) error {
	return c.write(ctx, &request{query: qAppend, op: "append", key: key, values: [2][]byte{value}})
}

// MultiGet implements store.Store.
func (c *Client) MultiGet(ctx context.Context, keys []string) (values [][]byte, err error) {
	if err := c.exist(ctx, "multi-get", keys...); err != nil {
		return nil, err
	}
	err = c.call(ctx, &request{query: qMultiGet, op: "multi-get", keys: keys}, func(l *line) error {
		values = make([][]byte, len(keys))
		for i := range values {
			if values[i], err = l.bytes(); err != nil {
				return err
			}
		}
		return nil
	})
	return values, err
}

// MultiSet implements store.Store. PyTorch's server sets the keys one after the
// other; ours all at once.
func (c *Client) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		return fmt.Errorf("%w: %d keys, %d values", store.ErrLengths, len(keys), len(values))
	}
	return c.write(ctx, &request{query: qMultiSet, op: "multi-set", keys: keys, pairs: values})
}

// Delete implements store.Store.
func (c *Client) Delete(ctx context.Context, key string) (bool, error) {
	n, err := c.number(ctx, &request{query: qDelete, op: "delete", key: key})
	return n > 0, err
}

// NumKeys implements store.Store.
func (c *Client) NumKeys(ctx context.Context) (n int64, err error) {
	return c.number(ctx, &request{query: qNumKeys, op: "number of keys"})
}

// ListKeys implements store.Store.
func (c *Client) ListKeys(ctx context.Context) (keys []string, err error) {
	err = c.call(ctx, &request{query: qListKeys, op: "list keys"}, func(l *line) error {
		keys, err = l.list()
		return err
	})
	mine := keys[:0]
	for _, key := range keys {
		if rest, ok := strings.CutPrefix(key, "/"); ok {
			mine = append(mine, rest)
		}
	}
	return mine, err
}

// QueuePush implements store.Store. PyTorch's server has queues only with
// use_libuv=True, which is its default.
func (c *Client) QueuePush(ctx context.Context, key string, value []byte) error {
	return c.write(ctx, &request{query: qQueuePush, op: "queue push", key: key, values: [2][]byte{value}})
}

// QueuePop implements store.Store.
func (c *Client) QueuePop(ctx context.Context, key string, block bool) (value []byte, err error) {
	for {
		before := int64(0)
		err = c.call(ctx, &request{query: qQueuePop, op: "queue pop", key: key}, func(l *line) error {
			if before, err = l.readInt(); err != nil || before <= 0 {
				return err
			}
			value, err = l.bytes()
			return err
		})
		switch {
		case err != nil || before > 0:
			return value, err
		case !block:
			return nil, store.ErrQueueEmpty
		}
		if err = c.wait(ctx, &request{query: qWait, op: "queue pop", keys: []string{key}}); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			// The push woke this call and nobody else.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutGrace)
			defer cancel()
			value, err = c.QueuePop(last, key, false)
			if errors.Is(err, store.ErrQueueEmpty) {
				err = context.Cause(ctx)
			}
			return value, err
		}
	}
}

// QueueLen implements store.Store.
func (c *Client) QueueLen(ctx context.Context, key string) (int64, error) {
	return c.number(ctx, &request{query: qQueueLen, op: "queue length", key: key})
}

// Barrier implements store.Store, by one request that torch's TCPStore.barrier
// uses too.
func (c *Client) Barrier(ctx context.Context, key string, n int) error {
	return c.wait(ctx, &request{query: qBarrier, op: "barrier", key: key, n: int64(n)})
}

// A LostError says that the server ended a connection in the middle of things.
type LostError struct {
	Addr   string // Addr is the address that the client was given
	Remote string // Remote is the IP address and port that it was connected to
	Op     string // Op is the call that found out, in lower case
	Err    error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("tcpstore: %s: connection to %s (%s) lost: %v; "+
		"the process that hosts the store has ended, or refused the request (its log says why), or the network between "+
		"is down",
		e.Op, e.Addr, e.Remote, e.Err)
}

func (e *LostError) Unwrap() error { return e.Err }
