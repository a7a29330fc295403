package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/server"
)

// A callLab is a server with nodes, and what those are called with.
type callLab struct {
	t     *testing.T
	s     *server.Server
	nodes []*server.Client // by rank
	rings chan uint64
	kinds chan string // of the requests that rings are for
	all   sync.WaitGroup
}

// newCallLab returns one whose nodes do not answer, but for what the test does.
func newCallLab(t *testing.T, nodes int) *callLab {
	l := &callLab{t: t, s: server.New(nil, slog.New(slog.DiscardHandler)), rings: make(chan uint64, 10), kinds: make(chan string, 10)}
	for pid := range nodes {
		ours, theirs := net.Pipe()
		l.all.Go(func() { l.s.Serve(theirs) })
		c, err := server.Greet(t.Context(), ours, callable(pid, nodes), l.ring)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(&server.Message{Type: server.Join}); err != nil {
			t.Fatal(err)
		}
		l.nodes = append(l.nodes, c)
	}
	for rank, c := range l.nodes {
		if m, err := c.Recv(t.Context()); err != nil || m.Type != server.Round || m.Rank != rank {
			t.Fatal(m, err)
		}
	}
	t.Cleanup(func() {
		for _, c := range l.nodes {
			c.Close()
		}
		l.s.Close()
		l.all.Wait()
	})
	return l
}

// callable is the hello of a node that takes calls, and answers "weather".
func callable(pid, nodes int) *server.Message {
	m := hello("job1", pid, nodes)
	m.Calls, m.Answers = true, []string{"weather"}
	return m
}

func (l *callLab) ring(call uint64, kind string) {
	if l.rings <- call; kind != "" {
		l.kinds <- kind
	}
}

// dial makes a connection to ServeCall.
func (l *callLab) dial() net.Conn {
	ours, theirs := net.Pipe()
	l.all.Go(func() { l.s.ServeCall(theirs) })
	l.t.Cleanup(func() { ours.Close() })
	return ours
}

// call calls a rank, and returns the connection or why there is none.
func (l *callLab) call(runID string, rank int) (net.Conn, error) {
	conn := l.dial()
	return conn, server.Dial(l.t.Context(), conn, runID, rank, server.Calling{})
}

// What one agent writes the other reads, both ways, until one of them hangs up.
func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallLab(t, 1)
		answered := make(chan net.Conn, 1)
		l.all.Go(func() {
			conn := l.dial()
			if err := server.Take(context.Background(), conn, <-l.rings); err != nil {
				t.Errorf("Take: %v", err)
			}
			answered <- conn
		})
		caller, err := l.call("job1", 0)
		if err != nil {
			t.Fatal(err)
		}
		callee := <-answered
		time.Sleep(time.Hour) // a call may be silent for long
		for _, way := range [][2]net.Conn{{caller, callee}, {callee, caller}} {
			l.all.Go(func() { _, _ = way[0].Write([]byte("hello")) })
			var text [5]byte
			if _, err := io.ReadFull(way[1], text[:]); err != nil || string(text[:]) != "hello" {
				t.Errorf("%q, %v", text, err)
			}
		}
		callee.Close()
		if n, err := caller.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after the end: %d bytes, %v", n, err)
		}
	})
}

// Who cannot be reached is said, and nothing of a call is left.
func TestCallIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallLab(t, 1)
		for _, tt := range []struct {
			runID string
			rank  int
			want  string
		}{
			{"job2", 0, `no rendezvous of run "job2" is held here`},
			{"job1", 1, "no agent has group rank 1"},
			{"job1", -1, "no agent has group rank -1"},
			{"job1", 0, "the agent with group rank 0 did not answer within 10s"},
		} {
			began := time.Now()
			_, err := l.call(tt.runID, tt.rank)
			var refused *server.RefusedError
			if !errors.As(err, &refused) || refused.Reason != tt.want || time.Since(began) > 10*time.Second {
				t.Errorf("rank %d of %s: %v after %v, want %s", tt.rank, tt.runID, err, time.Since(began), tt.want)
			}
		}
		conn := l.dial()
		if err := server.Take(t.Context(), conn, <-l.rings); err == nil || !strings.Contains(err.Error(), "nobody calls any more") {
			t.Errorf("an answer that is late: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := server.Dial(ctx, l.dial(), "job1", 0, server.Calling{}); err != context.DeadlineExceeded {
			t.Errorf("with a limit: %v", err)
		}
		for _, text := range []string{"", "x", "\x00\x00\x00\x02{}", "\xff\xff\xff\xff"} { // no call
			conn := l.dial()
			l.all.Go(func() { _, _ = io.WriteString(conn, text) })
			if n, err := conn.Read(make([]byte, 1)); n > 0 || err != io.EOF {
				t.Errorf("%q: %d bytes, %v", text, n, err)
			}
		}
	})
}

// Who calls an agent that has left the job is told so; one that is lost may come back.
func TestCallOfOneThatHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallLab(t, 3)
		gone := func(rank int, want bool) {
			t.Helper()
			synctest.Wait()
			_, err := l.call("job1", rank)
			var refused *server.RefusedError
			if why := fmt.Sprintf("host a, group rank %d, is gone", rank); !errors.As(err, &refused) || refused.Gone != want || refused.Reason != why {
				t.Errorf("%+v, want %s, for good: %v", err, why, want)
			}
		}
		l.nodes[1].Close()
		gone(1, false) // it may be lost
		if err := l.nodes[0].Send(&server.Message{Type: server.Close}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.nodes[2].Close()
		gone(2, true)
	})
}

// Readers leave room for others, calls leave room for the rendezvous, and those that end make
// room; who is refused for that may try again, and who calls an agent of torchrun may not.
func TestCallsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallLab(t, 1)
		l.s.LimitCalls(32) // 8 calls, 2 of them for readers
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l.all.Go(func() {
			for {
				select {
				case id := <-l.rings:
					_ = server.Take(ctx, l.dial(), id)
				case <-ctx.Done():
					return
				}
			}
		})
		call := func(reader bool) (net.Conn, string) {
			conn := l.dial()
			err := server.Dial(ctx, conn, "job1", 0, server.Calling{Reader: reader})
			var refused *server.RefusedError
			if errors.As(err, &refused) && !refused.Final {
				return nil, refused.Reason
			} else if err != nil {
				t.Fatal(err)
			}
			return conn, ""
		}
		readers, others := [10]net.Conn{}, [8]net.Conn{}
		for i := range readers {
			var why string
			if readers[i], why = call(true); (i < 2) != (why == "") || i >= 2 && why != "2 calls between agents are open for readers of logs; try again later" {
				t.Errorf("reader %d: %q", i, why)
			}
		}
		began := time.Now()
		if l.s.AwaitCalls(ctx.Done()); time.Since(began) > 0 {
			t.Errorf("the end waits %v for readers", time.Since(began))
		}
		for i := range others {
			var why string
			if others[i], why = call(false); (i < 6) != (why == "") || i >= 6 && why != "8 calls between agents are open; try again later" {
				t.Errorf("call %d: %q", i, why)
			}
		}
		readers[0].Close()
		others[0].Close()
		synctest.Wait()
		for _, reader := range []bool{true, false} {
			if _, why := call(reader); why != "" {
				t.Errorf("reader %v, when one has ended: %q", reader, why)
			}
		}
	})
}

// Calls cost two descriptors each and no pipes, of which the user's other processes have need.
func TestCallsTakeNoPipes(t *testing.T) {
	l := newCallLab(t, 1)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		served, err := tcp.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.all.Go(func() { l.s.ServeCall(served) })
		return conn
	}
	pipes := func() (n int) {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		for _, f := range files {
			if target, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(target, "pipe:") {
				n++
			}
		}
		return n
	}
	before := pipes()
	answered := make(chan net.Conn, 1)
	l.all.Go(func() {
		conn := dial()
		if err := server.Take(context.Background(), conn, <-l.rings); err != nil {
			t.Errorf("Take: %v", err)
		}
		answered <- conn
	})
	caller := dial()
	if err := server.Dial(t.Context(), caller, "job1", 0, server.Calling{}); err != nil {
		t.Fatal(err)
	}
	callee := <-answered
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // it fills buffers of all sizes
	for _, way := range [][2]net.Conn{{caller, callee}, {callee, caller}} {
		l.all.Go(func() { _, _ = way[0].Write(text) })
		got := make([]byte, len(text))
		if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, text) {
			t.Errorf("another text arrives, %v", err)
		}
	}
	if n := pipes(); n != before {
		t.Errorf("%d ends of pipes, %d before the call", n, before)
	}
}

// A server that ends waits for calls that have just begun, and not for those that last.
func TestAwaitCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallLab(t, 1)
		waits := func() time.Duration {
			began := time.Now()
			l.s.AwaitCalls(t.Context().Done())
			return time.Since(began)
		}
		if took := waits(); took != 0 {
			t.Errorf("without a call: %v", took)
		}
		for _, lasts := range []time.Duration{0, time.Second, time.Hour} {
			conns := make(chan net.Conn, 1)
			l.all.Go(func() {
				conn := l.dial()
				_ = server.Take(context.Background(), conn, <-l.rings)
				conns <- conn
			})
			caller, err := l.call("job1", 0)
			if err != nil {
				t.Fatal(err)
			}
			callee := <-conns
			end := time.AfterFunc(lasts, func() { callee.Close() })
			took, want := waits(), min(max(lasts, 100*time.Millisecond), 2*time.Second)
			if took < want || took > want+20*time.Millisecond {
				t.Errorf("a call of %v: %v, want %v", lasts, took, want)
			}
			end.Stop()
			callee.Close()
			caller.Close()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.s.AwaitCalls(ctx.Done())
	})
}

// from is the server's end of a connection between hosts.
type from struct {
	net.Conn
	host string
}

func (c from) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: 29400} }
func (c from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 40000} }

// An agent calls others and gets the store of its workers, whatever address its host connects from by
// then; another process of its host, or of another one, does not.
func TestAgentsAreKnownByTheirSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallLab(t, 0)
		dial := func(host string, serve func(net.Conn)) net.Conn {
			ours, theirs := net.Pipe()
			l.all.Go(func() { serve(from{theirs, host}) })
			t.Cleanup(func() { ours.Close() })
			return ours
		}
		c, err := server.Greet(t.Context(), dial("fd77::12", l.s.Serve), callable(0, 1), l.ring)
		if err != nil {
			t.Fatal(err)
		}
		l.nodes = append(l.nodes, c)
		if err := c.Join(); err != nil {
			t.Fatal(err)
		}
		if m, err := c.Recv(t.Context()); err != nil || m.Type != server.Round {
			t.Fatal(m, err)
		}
		l.all.Go(func() { _ = server.Take(context.Background(), dial("fd77::aaaa", l.s.ServeCall), <-l.rings) })
		if err := server.Dial(t.Context(), dial("fd77::aaaa", l.s.ServeCall), "job1", 0, server.Calling{}); err != nil {
			t.Errorf("a call from another address of the host: %v", err)
		}
		if err := server.AskStore(t.Context(), dial("fd77::aaaa", l.s.ServeStore), "job1", 0); err != nil {
			t.Errorf("the workers' store from another address of the host: %v", err)
		}
		for _, instance := range []uint64{0, 1} {
			for _, m := range []server.Message{{Type: server.Call}, {Type: server.Store}} {
				m.RunID, m.Instance = "job1", instance
				serve := map[server.Type]func(net.Conn){server.Call: l.s.ServeCall, server.Store: l.s.ServeStore}[m.Type]
				conn := dial("fd77::12", serve)
				if _, err := conn.Write(m.Append(nil)); err != nil {
					t.Fatal(err)
				}
				if answer, err := server.Read(conn); err != nil || answer.Type != server.Refused {
					t.Errorf("%s of a stranger: %+v, %v", m.Type, answer, err)
				}
			}
		}
	})
}

// A call for a kind of request rings as one, unless the agent that is called or the one that holds the
// rendezvous is a release that does not know of it.
func TestCallForARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallLab(t, 1)
		l.all.Go(func() {
			if err := server.Take(context.Background(), l.dial(), <-l.rings); err != nil {
				t.Errorf("Take: %v", err)
			}
		})
		if err := server.Dial(t.Context(), l.dial(), "job1", 0, server.Calling{Ask: "weather"}); err != nil || <-l.kinds != "weather" {
			t.Error(err)
		}
		synctest.Wait() // the caller is welcomed first; the end of the test would close the agent's connection
		older, holder := net.Pipe()
		l.all.Go(func() {
			_, _ = server.Read(holder)
			_, _ = holder.Write((&server.Message{Type: server.Welcome}).Append(nil))
		})
		for want, conn := range map[string]net.Conn{
			`the agent on host a, another release of muster, has no answer to "time"`:               l.dial(),
			"the agent that holds the rendezvous, another release of muster, passes on no requests": older,
		} {
			err := server.Dial(t.Context(), conn, "job1", 0, server.Calling{Ask: "time"})
			var refused *server.RefusedError
			if !errors.As(err, &refused) || !refused.Final || refused.Reason != want {
				t.Errorf("%+v, want %s", err, want)
			}
		}
	})
}
