package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/muster-run/muster/store"
)

// ErrNoSession is matched by the errors of DialSession and ServeSession where the
// server does not offer sessions, as PyTorch's does not, or none of that name.
var ErrNoSession = errors.New("the server offers no such session")

var errSessionWaits = errors.New("a SESSION while a WAIT or BARRIER is parked on the connection")

// errSession ends conn.serve when the connection has become a session.
var errSession = errors.New("session")

// HandleSession makes the server offer sessions of that name: connections that are
// f's from then on, to speak another protocol. It replaces an earlier handler of the
// name; a nil f ends the offer. It may be called while the server serves, but a
// client that came before found no sessions: see ServerConfig.Prepare.
//
// Each session has a goroutine, which calls f and closes the connection when f has
// returned. Close closes the connections of sessions and waits for f to return; Reset
// leaves them alone.
func (s *Server) HandleSession(name string, f func(conn net.Conn)) {
	if f == nil {
		s.handlers.Delete(name)
	} else {
		s.handlers.Store(name, f)
	}
}

// ServeSession begins a session inside this process and returns the client's
// end of it, which the caller closes. Both ends block in a Write until the other
// has read. The error is store.ErrClosed after Close, or matches ErrNoSession.
func (s *Server) ServeSession(name string) (net.Conn, error) {
	f := s.handler(name)
	if f == nil {
		return nil, fmt.Errorf("tcpstore: session %.200q: %w", name, ErrNoSession)
	}
	client, server := net.Pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	s.sessions[server] = struct{}{}
	s.all.Go(func() { s.hold(server, server, f) })
	return client, nil
}

// hold lets f have a session. Conn is nc, or reads what came before from
// elsewhere.
func (s *Server) hold(nc, conn net.Conn, f func(net.Conn)) {
	f(conn)
	nc.Close()
	s.mu.Lock()
	delete(s.sessions, nc)
	s.mu.Unlock()
}

func (s *Server) handler(name string) func(net.Conn) {
	f, _ := s.handlers.Load(name)
	handler, _ := f.(func(net.Conn))
	return handler
}

// offers reports whether the key is the one that says that there are sessions,
// and there are.
func (s *Server) offers(key string) (some bool) {
	if key == sessionKey {
		s.handlers.Range(func(_, _ any) bool { some = true; return false })
	}
	return some
}

// enterSession performs SESSION. If the server has a handler it returns errSession
// and the reply is still to be written.
func (c *conn) enterSession(name string) error {
	c.s.m.Lock()
	c.settle()
	parked := c.waits()
	c.s.m.Unlock()
	if parked { // its answer could come between the bytes of the session
		_ = c.flush()
		return &requestError{err: errSessionWaits}
	}
	c.session = c.s.handler(name)
	if c.session == nil {
		c.replies.byte(refused)
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	return errSession
}

// remainder is a connection of which some has been read already.
type remainder struct {
	net.Conn
	in io.Reader // that, and then the connection
}

func (r *remainder) Read(b []byte) (int, error) { return r.in.Read(b) }

// afterwards returns the connection without what has been performed, and lets go
// of the buffer.
func (c *conn) afterwards() net.Conn {
	rest := bytes.Clone(c.buf[c.r:c.w])
	c.buf, c.keys, c.replies = nil, nil, batch{}
	if len(rest) == 0 {
		return c.nc
	}
	return &remainder{c.nc, io.MultiReader(bytes.NewReader(rest), c.nc)}
}

// DialSession makes a connection as Dial does, and a session of it: it is the
// caller's, who speaks the protocol of that name on it and closes it. ClientConfig's
// WorldSize has no meaning.
//
// If the server does not offer such sessions, as PyTorch's does not, the
// error matches ErrNoSession at once; PyTorch's server has noticed nothing but
// a question about a key. If no server answers, the error is a *ConnectError.
func DialSession(ctx context.Context, cfg ClientConfig, name string) (net.Conn, error) {
	if len(name) > maxKey {
		return nil, &LimitError{"session name", len(name), maxKey, name[:64]}
	}
	return newDialer(cfg).dial(ctx, func(ctx context.Context, nc net.Conn) error { return openSession(ctx, nc, name) })
}

// openSession is the opener of a session.
func openSession(ctx context.Context, nc net.Conn, name string) error {
	var offer [2]byte
	answer := [1]byte{refused}
	err := ask(ctx, nc, slices.Concat(greeting, checkOf(sessionKey)), offer[:])
	if err == nil && offer[1] == ready {
		err = ask(ctx, nc, append(appendInt([]byte{byte(qSession)}, int64(len(name))), name...), answer[:])
	}
	if err == nil && answer[0] != accepted {
		err = fmt.Errorf("session %.200q: %w", name, ErrNoSession)
	}
	return err
}
