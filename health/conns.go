package health

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/wait/sleep"
)

// conns are a listener's open connections, limited in number. When there are too
// many, the oldest that is not being answered is closed for the new one: neither
// idle connections nor clients that send a byte now and then can keep a probe out.
type conns struct {
	net.Listener
	max int

	mu   sync.Mutex // guards open, and answering of each
	open []*conn    // oldest first
}

type conn struct {
	net.Conn
	of        *conns
	answering int // requests; of.mu guards it
	streaming int // the same of those that may be closed for another connection
}

type connKey struct{}

// refusal is all that a client gets for which there is no room.
const refusal = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 53\r\n\r\n" +
	"too many connections are open; try again in a second\n"

const refusalTime = 100 * time.Millisecond

// Accept returns the next connection that there is room for.
func (l *conns) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, of: l}
		victim, ok := l.admit(c)
		if victim != nil {
			victim.Close()
		}
		if ok {
			return c, nil
		}
		_ = nc.SetDeadline(time.Now().Add(refusalTime)) // it fits into an empty buffer
		_, _ = nc.Write([]byte(refusal))
		nc.Close()
	}
}

// admit makes room for c, and says which connection is to be closed for that.
func (l *conns) admit(c *conn) (victim *conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.max {
		i := slices.IndexFunc(l.open, func(o *conn) bool { return o.answering == 0 })
		if i < 0 {
			return nil, false
		}
		victim = l.open[i]
		l.open = slices.Delete(l.open, i, i+1)
	}
	l.open = append(l.open, c)
	return victim, true
}

// Close closes the connection; a second time does nothing.
func (c *conn) Close() error {
	l := c.of
	l.mu.Lock()
	l.open = slices.DeleteFunc(l.open, func(o *conn) bool { return o == c })
	l.mu.Unlock()
	if err := c.Conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// closeIdle closes the connections that are not being answered.
func (l *conns) closeIdle() {
	l.mu.Lock()
	idle := slices.DeleteFunc(slices.Clone(l.open), func(c *conn) bool { return c.answering+c.streaming > 0 })
	l.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
}

// keep says that a connection is being answered, until the returned function is
// called.
func keep(ctx context.Context) (done func()) {
	return count(ctx, func(c *conn) *int { return &c.answering })
}

// stream says the same of one that is closed all the same where there is no room for others.
func stream(ctx context.Context) (done func()) {
	return count(ctx, func(c *conn) *int { return &c.streaming })
}

func count(ctx context.Context, what func(*conn) *int) (done func()) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok { // not one of ours: a handler that somebody else serves
		return func() {}
	}
	add := func(n int) {
		c.of.mu.Lock()
		*what(c) += n
		c.of.mu.Unlock()
	}
	add(1)
	return func() { add(-1) }
}

// A pacer lets requests through at a steady rate: a flood then waits in its own
// connections instead of taking CPU time from the job.
type pacer struct {
	every time.Duration // between two requests
	burst int           // so many may come at once
	limit time.Duration // nobody waits longer

	mu   sync.Mutex // guards next
	next time.Time  // when the next request may continue
}

// wait returns when the request may continue; false if that is too far away, or ctx
// has ended.
func (p *pacer) wait(ctx context.Context) bool {
	d, ok := p.reserve(time.Now())
	return ok && (d <= 0 || sleep.For(ctx, d) == nil)
}

// reserve returns how long the next request has to wait.
func (p *pacer) reserve(now time.Time) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if earliest := now.Add(-time.Duration(p.burst) * p.every); p.next.Before(earliest) {
		p.next = earliest
	}
	d := p.next.Sub(now) + p.every
	if d > p.limit {
		return 0, false
	}
	p.next = p.next.Add(p.every)
	return d, true
}
