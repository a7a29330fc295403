package node

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// callName is what a muster server calls its calls.
const callName = "call"

// answerTime is how long the way to the caller may take.
const answerTime = 10 * time.Second

// Call implements rendezvous.Caller.
func (n *Node) Call(ctx context.Context, rank int) (net.Conn, error) {
	return n.call(ctx, rank, server.Calling{})
}

// CallToRead implements rendezvous.Caller.
func (n *Node) CallToRead(ctx context.Context, rank int) (net.Conn, error) {
	return n.call(ctx, rank, server.Calling{Reader: true})
}

func (n *Node) call(ctx context.Context, rank int, c server.Calling) (net.Conn, error) {
	n.mu.Lock()
	s, ok := n.protocol.(*session)
	n.mu.Unlock()
	if !ok {
		return nil, rendezvous.ErrNoCalls
	}
	conn, err := s.dial(ctx, callName)
	if err != nil {
		return nil, err
	}
	err = server.Dial(ctx, conn, n.cfg.RunID, rank, c)
	if refused, ok := errors.AsType[*server.RefusedError](err); ok {
		err = &rendezvous.CallError{Reason: refused.Reason, Final: refused.Final, Gone: refused.Gone}
	}
	return conn, err
}

// Calls implements rendezvous.Caller.
func (n *Node) Calls() (net.Listener, error) {
	if n.calls == nil {
		n.calls = &callListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	}
	return n.calls, nil
}

// ring lets another agent's call be answered, in goroutines that end by themselves: the goroutine that
// calls it reads the session, and must not wait.
func (s *session) ring(call uint64, kind string) {
	if kind != "" {
		s.n.answers.running.Go(func() { s.respond(call, kind) })
		return
	}
	go func() {
		if conn, err := s.take(context.Background(), call); err == nil {
			s.n.calls.deliver(conn)
		}
	}()
}

// take connects to the agent that calls.
func (s *session) take(ctx context.Context, call uint64) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := s.dial(ctx, callName)
	if err == nil {
		err = server.Take(ctx, conn, call)
	}
	if err != nil {
		s.n.log.Debug("cannot answer another agent's call", "error", err)
	}
	return conn, err
}

// A callListener accepts the calls of other agents.
type callListener struct {
	conns  chan net.Conn // never closed, since deliver may be sending: closed ends both sides
	once   sync.Once
	closed chan struct{}
}

func (l *callListener) deliver(conn net.Conn) {
	select {
	case l.conns <- conn:
	case <-l.closed:
		conn.Close()
	}
}

// Accept returns the next call.
func (l *callListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept. Calls that were accepted continue.
func (l *callListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is that of no network.
func (l *callListener) Addr() net.Addr { return &net.UnixAddr{Net: "call", Name: "calls of agents"} }
