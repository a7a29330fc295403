package server

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/store"
)

// A call is a connection between two agents of a run. Agents need not reach each other: the
// server rings the one that is called, over its session; that one dials the server, which
// then passes on what each of them writes. Nobody is connected for calls while there are none.

const (
	// ringTime is how long an agent has to answer.
	ringTime = 10 * time.Second
	// mostCalls is how many calls may be open; one of readersPart may be for a reader, whom
	// anybody may be: they last for as long as those like, and must leave room for others.
	mostCalls   = 4096
	readersPart = 4
	// callsQuiet is how long no call has begun where AwaitCalls returns, and callsLong how
	// long those last that it does not wait for.
	callsQuiet = 100 * time.Millisecond
	callsLong  = 2 * time.Second
)

// calls are those of a server.
type calls struct {
	most int // never changes once the server serves

	mu      sync.Mutex          // guards the rest
	open    map[uint64]openCall // by number
	readers int                 // how many of them are for a reader
	last    time.Time           // when the last of the others began
	ringing map[uint64]chan<- answered
}

type openCall struct {
	began  time.Time
	reader bool
}

// An answered call has the connection of the agent that was called, and over is closed once
// it is not used any more.
type answered struct {
	id   uint64
	conn net.Conn
	over chan struct{}
}

// LimitCalls leaves half of the connections that the server may have to others than calls, each
// of which has two. It is called before the server serves.
func (s *Server) LimitCalls(conns int) { s.calls.most = min(mostCalls, conns/4) }

// ServeCall serves one connection of an agent that calls another, or that answers.
func (s *Server) ServeCall(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	m, err := Read(conn)
	if err != nil {
		return
	}
	switch m.Type {
	case Call:
		s.call(conn, m)
	case Answer:
		s.answer(conn, m.Call)
	}
}

// call rings an agent and connects it.
func (s *Server) call(conn net.Conn, m *Message) {
	callee, refusal := s.ring(m)
	if refusal != nil {
		_, _ = conn.Write(refusal.Append(nil))
		return
	}
	defer func() {
		callee.conn.Close()
		close(callee.over)
		s.hangUp(callee.id)
	}()
	for _, end := range []net.Conn{conn, callee.conn} {
		if _, err := end.Write((&Message{Type: Welcome, Calling: Calling{Ask: m.Ask}}).Append(nil)); err != nil {
			return
		}
		_ = end.SetDeadline(time.Time{})
	}
	go func() {
		pass(callee.conn, conn)
		conn.Close()
		callee.conn.Close()
	}()
	pass(conn, callee.conn)
}

// pass passes on what src sends until either end is closed. Between two sockets io.Copy would have
// a pipe: two more descriptors, and up to 1 MiB of what the pipes of all the user's processes may
// have. The buffer of a call that says little stays small.
func pass(dst io.Writer, src io.Reader) {
	buf := make([]byte, 2<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, failed := dst.Write(buf[:n]); failed != nil {
				return
			}
		}
		if err != nil {
			return
		}
		if n == len(buf) && n < 32<<10 {
			buf = make([]byte, 4*n)
		}
	}
}

func refuse(format string, args ...any) *Message {
	return &Message{Type: Refused, Refusal: Refusal{Error: fmt.Sprintf(format, args...)}}
}

// ring waits for the answer of the agent that is called, or says why there is none.
func (s *Server) ring(m *Message) (_ *answered, refusal *Message) {
	l := s.of(m.RunID)
	if l == nil {
		return nil, refuse("no rendezvous of run %.80q is held here", m.RunID)
	}
	id, answer := rand.Uint64(), make(chan answered, 1)
	c := &s.calls
	if refusal = c.begin(id, m.Reader, answer); refusal != nil {
		return nil, refusal
	}
	l.do(func(r *Rendezvous, _ time.Time) { refusal = r.ring(m, id) })
	if refusal == nil {
		timer := time.NewTimer(ringTime)
		defer timer.Stop()
		select {
		case a := <-answer:
			return &a, nil
		case <-timer.C:
			refusal = refuse("the agent with group rank %d did not answer within %v", m.Rank, ringTime)
		}
	}
	c.mu.Lock()
	delete(c.ringing, id)
	c.mu.Unlock()
	select {
	case a := <-answer: // just now
		return &a, nil
	default:
		s.hangUp(id)
		return nil, refusal
	}
}

// begin counts a call, until hangUp, or says why there is no room for it.
func (c *calls) begin(id uint64, reader bool, answer chan<- answered) *Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case len(c.open) >= c.most:
		return refuse("%d calls between agents are open; try again later", c.most)
	case !reader:
		c.last = now
	case c.readers >= c.most/readersPart:
		return refuse("%d calls between agents are open for readers of logs; try again later", c.readers)
	default:
		c.readers++
	}
	c.open[id] = openCall{now, reader}
	c.ringing[id] = answer
	return nil
}

// hangUp forgets a call.
func (s *Server) hangUp(id uint64) {
	c := &s.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[id].reader {
		c.readers--
	}
	delete(c.open, id)
}

// AwaitCalls lets calls end that have just begun, or until done is closed: where all agents are
// asked to stop, the one that holds the rendezvous has others to pass that on to. Readers are none.
func (s *Server) AwaitCalls(done <-chan struct{}) {
	for wait := s.calls.quiet(); wait > 0; wait = s.calls.quiet() {
		select {
		case <-time.After(wait):
		case <-done:
			return
		}
	}
}

// quiet is how long to wait before looking again; 0 if there is nothing to wait for.
func (c *calls) quiet() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.open {
		if !call.reader && time.Since(call.began) < callsLong {
			return callsQuiet / 10
		}
	}
	return max(callsQuiet-time.Since(c.last), 0)
}

// answer hands an agent's connection to who called it.
func (s *Server) answer(conn net.Conn, id uint64) {
	s.calls.mu.Lock()
	caller := s.calls.ringing[id]
	delete(s.calls.ringing, id)
	over := make(chan struct{})
	if caller != nil {
		caller <- answered{id, conn, over} // which has room
	}
	s.calls.mu.Unlock()
	if caller == nil {
		_, _ = conn.Write(refuse("nobody calls any more").Append(nil))
		return
	}
	<-over
}

// ring tells the node with a rank in the last round that it is called, or says why that cannot
// be: for as long as the round lasts (Final), or since the agent has left the job, and is not
// just lost (Gone). Only agents of the job may call.
func (r *Rendezvous) ring(m *Message, id uint64) *Message {
	if !r.knows(m) {
		return refuse("the caller is not an agent of the job")
	}
	for node, rank := range r.last.ranks {
		if rank != m.Rank {
			continue
		}
		switch s := r.sessions.of[node]; {
		case s == nil && r.last.hostNames[node] == "":
			final := refuse("group rank %d is an agent of torchrun, which takes no calls", rank)
			final.Final = true
			return final
		case s == nil:
			gone := refuse("host %s, group rank %d, is gone", r.last.hostNames[node], rank)
			gone.Gone = r.last.left.Has(node)
			return gone
		case m.Ask == "" && !s.hello.Calls:
			final := refuse("the agent on host %s takes no calls", s.hello.Host)
			final.Final = true
			return final
		case m.Ask != "" && !slices.Contains(s.hello.Answers, m.Ask):
			final := refuse("the agent on host %s, another release of muster, has no answer to %.40q", s.hello.Host, m.Ask)
			final.Final = true
			return final
		default:
			r.send(s, &Message{Type: Ring, Calling: Calling{Call: id, Ask: m.Ask}})
			return nil
		}
	}
	return refuse("no agent has group rank %d", m.Rank)
}

// knows reports whether a message on another connection comes from an agent with a session. Its
// address does not tell that: a host may have several, and those of IPv6 change.
func (r *Rendezvous) knows(m *Message) (known bool) {
	for _, s := range r.sessions.byID {
		known = known || m.Instance != 0 && s.hello.Instance == m.Instance
	}
	return known
}

// Dial calls the agent with a rank in a run's last round on conn, a connection to ServeCall.
// Once it has answered, conn leads to it. A Reader is refused sooner, and so is an Ask of a kind that the
// other does not answer.
func Dial(ctx context.Context, conn net.Conn, runID string, rank int, c Calling) error {
	return connect(ctx, conn, &Message{Type: Call, Greeting: Greeting{RunID: runID, Instance: instance()}, Rank: rank,
		Calling: c})
}

// Take answers a call on conn, a connection to ServeCall. conn then leads to who called.
func Take(ctx context.Context, conn net.Conn, id uint64) error {
	return connect(ctx, conn, &Message{Type: Answer, Calling: Calling{Call: id}})
}

// connect sends a message and waits for the Welcome. It closes conn if that does not come.
func connect(ctx context.Context, conn net.Conn, m *Message) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	answer, err := (*Message)(nil), error(nil)
	if _, err = conn.Write(m.Append(nil)); err == nil {
		answer, err = Read(conn)
	}
	switch {
	case !stop():
		err = context.Cause(ctx)
	case err == nil && answer.Type == Refused && answer.Over:
		err = store.ErrClosed
	case err == nil && answer.Type == Refused:
		err = &RefusedError{Reason: answer.Error, Final: answer.Final, Gone: answer.Gone}
	case err == nil && answer.Type != Welcome:
		err = fmt.Errorf("the rendezvous answered %.40q, want %q", answer.Type, Welcome)
	case err == nil && m.Type == Call && answer.Ask != m.Ask:
		err = &RefusedError{Reason: "the agent that holds the rendezvous, another release of muster, passes on no requests", Final: true}
	}
	if err != nil {
		conn.Close()
	}
	return err
}
