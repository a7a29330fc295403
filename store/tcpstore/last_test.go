package tcpstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// A middlebox passes connections on to a server, until it forgets them.
type middlebox struct {
	net.Listener
	to string

	mu     sync.Mutex // guards the rest
	conns  []net.Conn
	silent bool // connections are taken, and nothing is passed on
	taken  chan struct{}
}

func newMiddlebox(t *testing.T, to string) *middlebox {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &middlebox{Listener: l, to: to, taken: make(chan struct{}, 100)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { m.pass(c) })
		}
	})
	t.Cleanup(func() { l.Close(); m.forget(); all.Wait() })
	return m
}

func (m *middlebox) pass(c net.Conn) {
	out, err := net.Dial("tcp", m.to)
	if err != nil {
		c.Close()
		return
	}
	m.mu.Lock()
	m.conns = append(m.conns, c, out)
	silent := m.silent
	m.mu.Unlock()
	m.taken <- struct{}{}
	if silent {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { io.Copy(out, c); out.Close() })
	both.Go(func() { io.Copy(c, out); c.Close() })
	both.Wait()
}

// forget ends all connections.
func (m *middlebox) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0) // as a firewall does: a reset
		}
		c.Close()
	}
	m.conns = nil
}

func behind(t *testing.T, m *middlebox) *tcpstore.Client {
	t.Helper()
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: m.Addr().String(), Timeout: 30 * time.Second, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A client that lasts continues when its connections have ended: those in use and those
// that are not.
func TestClientLasts(t *testing.T) {
	t.Parallel()
	s := listen(t)
	m := newMiddlebox(t, s.Addr().String())
	c := behind(t, m)
	c.Last()
	ctx := t.Context()
	for n := range int64(3) {
		if sum, err := c.Add(ctx, "n", 1); err != nil || sum != n+1 {
			t.Fatalf("Add after %d losses: %d, %v", n, sum, err)
		}
		if err := c.Set(ctx, "k", []byte("v")); err != nil {
			t.Fatalf("Set after %d losses: %v", n, err)
		}
		m.forget()
	}
	if value, err := c.Get(ctx, "k"); err != nil || string(value) != "v" {
		t.Errorf("Get: %q, %v", value, err)
	}
	for len(m.taken) > 0 {
		<-m.taken
	}
	got := make(chan error, 1)
	go func() {
		value, err := c.Get(ctx, "later")
		if err == nil && string(value) != "at last" {
			err = errors.New(string(value))
		}
		got <- err
	}()
	<-m.taken // the connection on which it waits
	m.forget()
	if err := s.Store().Set(ctx, "later", []byte("at last")); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("Get that waited while its connection was lost: %v", err)
	}
}

// It continues no longer than the server is there.
func TestClientLastsAsLongAsTheServer(t *testing.T) {
	t.Parallel()
	s := listen(t)
	m := newMiddlebox(t, s.Addr().String())
	c := behind(t, m)
	c.Last()
	m.Close()
	m.forget()
	began := time.Now()
	err := c.Set(t.Context(), "k", nil)
	lost, ok := errors.AsType[*tcpstore.LostError](err)
	if !ok || lost.Addr != m.Addr().String() {
		t.Fatalf("Set: %v, want a LostError about %s", err, m.Addr())
	}
	if again := c.Set(t.Context(), "k", nil); again != err {
		t.Errorf("Set again: %v, want the same error", again)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v to find that connections are refused", took)
	}
}

// Close, and the end of the context, end what is being connected again.
func TestCloseWhileConnectingAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		end  func(*tcpstore.Client, context.CancelFunc)
		want error
	}{
		{"close", func(c *tcpstore.Client, _ context.CancelFunc) { c.Close() }, store.ErrClosed},
		{"context", func(_ *tcpstore.Client, cancel context.CancelFunc) { cancel() }, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := listen(t)
			m := newMiddlebox(t, s.Addr().String())
			c := behind(t, m)
			c.Last()
			<-m.taken
			m.mu.Lock()
			m.silent = true
			m.mu.Unlock()
			m.forget()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- c.Set(ctx, "k", nil) }()
			<-m.taken
			tt.end(c, cancel)
			if err := <-done; !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// A server that ends each connection that waits is not asked for ever, whatever KeepAlive says.
func TestClientLastsWithoutKeepAlive(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				const wait = 6 // a query
				for b := make([]byte, 100); ; {
					if _, err := nc.Read(b); err != nil || b[0] == wait {
						return
					}
					nc.Write([]byte{1}) // the answer to a CHECK: there is no such key
				}
			}()
		}
	}()
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: l.Addr().String(), KeepAlive: -1, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Last()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var lost *tcpstore.LostError
	if err := c.Wait(ctx, "k"); !errors.As(err, &lost) {
		t.Errorf("got %v, want a *LostError", err)
	}
}
