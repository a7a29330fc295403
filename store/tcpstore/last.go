package tcpstore

import (
	"context"
	"errors"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// Last makes the client outlive its connections: one that has ended, by a network
// that was down for a while or a firewall that has forgotten it, is made again for the
// next call, and calls that only read, wait or set are repeated. The caller knows by
// other means that the server is still the same, and closes the client when it is not.
//
// A server that refuses connections has ended: all calls then fail, as they do when
// it cannot be reached for as long as KeepAlive says.
func (c *Client) Last() { c.lasting.Store(true) }

// mostTries is how often a request is sent whose connections end at once.
const mostTries = 3

// repeatable reports whether a call has the same effect if the server performs it twice.
func repeatable(op string) bool {
	return !slices.Contains([]string{"add", "append", "barrier", "compare and set", "delete", "queue pop", "queue push"},
		op)
}

// again reports whether a call whose connection has been lost is worth another one.
func (c *Client) again(ctx context.Context, err error, tries int) bool {
	return c.lasting.Load() && tries < mostTries && ctx.Err() == nil && !errors.Is(err, errLate) &&
		!errors.Is(err, errLong) && c.failure() == nil
}

// renewed returns l, or a new line if there is none (an earlier call was cut off) or
// it is known to have ended while nobody used it.
func (c *Client) renewed(ctx context.Context, l *line) (*line, error) {
	if l != nil && (!c.lasting.Load() || !l.ended()) {
		return l, nil
	}
	if l != nil {
		c.drop(l)
	}
	return c.dial(ctx)
}

// redial makes a line to a server that was there a moment ago.
func (c *Client) redial(ctx context.Context) (*line, error) {
	d := *c.dialer
	d.refused = true
	if limit := c.cfg.keepAlive().limit(); limit > 0 {
		d.timeout = min(d.timeout, limit)
	}
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	nc, err := d.dial(dialing, handshake)
	switch failed := c.failure(); {
	case err == nil:
		l := newLine(nc)
		return l, c.adopt(l)
	case failed != nil:
		return nil, failed
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	lost := &LostError{Addr: c.cfg.Addr, Remote: c.remote.String(), Op: "connect again", Err: err}
	c.fail(lost)
	return nil, lost
}

// keepAlive is the KeepAlive of a client.
func (cfg *ClientConfig) keepAlive() keepAlive { return keepAlive(cfg.KeepAlive) }

// ended reports whether a line that nobody uses is known to have ended.
func (l *line) ended() bool {
	nc := l.nc
	if inner, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = inner.NetConn() // of TLS
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true
	}
	ended := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ended = err == nil && n == 0 || err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	return ended || err != nil
}
