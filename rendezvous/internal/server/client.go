package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A RefusedError is what the rendezvous had against a node, or why it does not connect a call;
// that is Final if it stays so for as long as the round lasts, and Gone if the agent has left.
// Over says that the job has ended there, and that another of its run ID meets elsewhere; Taken that
// the node has a session there which may be dead.
type RefusedError struct {
	Reason string
	Final  bool
	Gone   bool
	Over   bool
	Taken  bool
}

func (e *RefusedError) Error() string { return "refused by the rendezvous: " + e.Reason }

// ErrSilent is the end of a session whose server was not heard of for the keep-alive
// limit.
var ErrSilent = errors.New("no answer within the keep-alive limit")

// A Client is a node's end of a session. Send may be called concurrently, Recv
// by one goroutine at a time. Its maker closes it.
type Client struct {
	Holder  string // the run ID of the job whose agent holds the rendezvous; "": no agent does
	conn    net.Conn
	limit   time.Duration
	offset  atomic.Int64  // the rendezvous' clock minus ours
	inbox   chan *Message // closed when the session has ended, with err set
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the session has ended
	once    sync.Once
	pinging sync.WaitGroup
	ring    func(call uint64, ask string) // see Greet

	mu  sync.Mutex // guards writes
	err error      // why the session ended; read's, who sets it before inbox is closed
}

// instance tells this process from others, should they have the same address and PID
// in the eyes of the rendezvous. On other connections it proves that they are of an agent with a session.
var instance = sync.OnceValue(func() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // which does not fail
	return binary.NativeEndian.Uint64(b[:])
})

// Greet begins a session on conn, which the Client closes. hello is completed. It
// returns a *RefusedError if the rendezvous does not want the node.
//
// ring is called when another agent calls this one, with the call's number and the kind of request that it is
// for, and must not wait; it may be nil if the hello names neither Calls nor Answers.
func Greet(ctx context.Context, conn net.Conn, hello *Message, ring func(call uint64, ask string)) (*Client, error) {
	hello.Type, hello.Version, hello.Instance = Hello, Version, instance()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	hello.Sent, hello.Boot = time.Now().UnixNano(), string(bytes.TrimSpace(boot))
	c := &Client{conn: conn, limit: hello.KeepAliveLimit, ring: ring, inbox: make(chan *Message, 64),
		closing: make(chan struct{}), done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	welcome, err := c.greet(hello)
	if !stop() && err != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	c.setOffset(welcome)
	c.Holder = welcome.RunID
	go c.read()
	c.pinging.Go(func() { c.ping(hello.KeepAlive) })
	return c, nil
}

func (c *Client) greet(hello *Message) (*Message, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(c.limit))
	if err := c.Send(hello); err != nil {
		return nil, err
	}
	m, err := Read(c.conn)
	switch {
	case err == io.EOF || errors.Is(err, syscall.ECONNRESET):
		return nil, &RefusedError{Reason: "its server has ended meanwhile", Over: true}
	case err != nil:
		return nil, err
	case m.Type == Refused:
		return nil, &RefusedError{Reason: m.Error, Over: m.Over, Taken: m.Taken}
	case m.Type != Welcome:
		return nil, fmt.Errorf("the rendezvous answered %.40q, want %q", m.Type, Welcome)
	}
	return m, nil
}

// setOffset notes the rendezvous' clock from an answer that came back just now.
func (c *Client) setOffset(m *Message) {
	now := time.Now().UnixNano()
	c.offset.Store(m.Time - (m.Sent + (now-m.Sent)/2))
}

// Offset is how far this node's clock is behind the rendezvous'.
func (c *Client) Offset() time.Duration { return time.Duration(c.offset.Load()) }

// Send sends a message.
func (c *Client) Send(m *Message) error {
	text := m.Append(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.limit))
	_, err := c.conn.Write(text)
	return err
}

// Recv returns the next message.
func (c *Client) Recv(ctx context.Context) (*Message, error) {
	if ctx.Err() != nil && len(c.inbox) > 0 {
		ctx = context.Background() // what has come counts first
	}
	select {
	case m, more := <-c.inbox:
		if !more {
			return nil, c.err
		}
		return m, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close ends the session. The rendezvous counts the node as lost, unless it has left.
func (c *Client) Close() error {
	c.once.Do(func() { close(c.closing) })
	err := c.conn.Close()
	<-c.done
	c.pinging.Wait()
	return err
}

// Done returns a channel that is closed when the session has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

func (c *Client) read() {
	defer close(c.done)
	defer close(c.inbox)
	in := bufio.NewReader(c.conn)
	for {
		m, err := c.next(in)
		if err != nil {
			c.err = err
			c.conn.Close()
			return
		}
		switch m.Type {
		case Pong:
			c.setOffset(m)
			continue
		case Ring:
			if c.ring != nil {
				c.ring(m.Call, m.Ask)
			}
			continue
		}
		select {
		case c.inbox <- m:
		case <-c.closing:
		}
	}
}

// next reads a message. If none has come within the limit it looks once more: where this
// process or its host was stopped for a while, what the rendezvous has said is yet to be read.
func (c *Client) next(in *bufio.Reader) (*Message, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(c.limit))
	_, err := in.Peek(1)
	if isTimeout(err) {
		_ = c.conn.SetReadDeadline(time.Now().Add(secondChance))
		_, err = in.Peek(1)
	}
	var m *Message
	if err == nil {
		_ = c.conn.SetReadDeadline(time.Now().Add(c.limit))
		m, err = Read(in)
	}
	if isTimeout(err) {
		err = ErrSilent
	}
	return m, err
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// ping tells the rendezvous that this node is alive, and gets its answers.
func (c *Client) ping(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = c.Send(&Message{Type: Ping, Sent: time.Now().UnixNano()})
		case <-c.done:
			return
		}
	}
}
