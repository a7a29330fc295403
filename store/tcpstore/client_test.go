package tcpstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// handshake is what our client opens with: VALIDATE and CHECK of the key CR LF CR LF.
const handshake = "00cef7853c" + "050100000000000000" + "04000000000000000d0a0d0a"

// fake is a server that does what a test wants with each connection.
func fake(t *testing.T, serve func(n int, nc net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { nc.Close() })
			all.Go(func() { serve(n, nc) })
		}
	})
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

// shake answers the opening of a client.
func shake(t *testing.T, nc net.Conn) bool {
	got := make([]byte, len(handshake)/2)
	if _, err := io.ReadFull(nc, got); err != nil {
		return false
	}
	if !bytes.Equal(got, unhex(handshake)) {
		t.Errorf("the client opened with %x", got)
		return false
	}
	nc.Write([]byte{1})
	return true
}

// enough is a timeout that tests wait for, within which what is at hand answers on a
// busy machine too.
const enough = time.Second

// refusing returns an address at which nobody listens before the test ends: a
// socket that does not listen has the port.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", addr.(*syscall.SockaddrInet4).Port)
}

func TestDialErrors(t *testing.T) {
	silent := fake(t, func(int, net.Conn) {})
	closing := fake(t, func(_ int, nc net.Conn) { nc.Close() })
	chatty := fake(t, func(_ int, nc net.Conn) { nc.Write([]byte("SSH-2.0-OpenSSH\r\n")) })
	refused := refusing(t)
	for _, tt := range []struct {
		name, addr string
		want       []string
		is         error
	}{
		{"refused", refused, []string{refused, "connection refused", "is running there"}, syscall.ECONNREFUSED},
		{"silent", silent, []string{silent, "no TCPStore handshake", "PyTorch 2"}, nil},
		{"closing", closing, []string{"no TCPStore handshake", "another service"}, nil},
		{"another protocol", chatty, []string{"answered like an SSH server", "SSH-2.0", "another service"}, nil},
		{"no such host", "no-such-host.invalid:1", []string{"no-such-host.invalid", "resolver"}, nil},
		{"no port", "127.0.0.1", []string{"missing port"}, nil},
		{"no route", "[fe80::1%nope]:1", []string{"fe80::1"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: tt.addr, Timeout: enough, Logger: quiet})
			var connect *tcpstore.ConnectError
			if !errors.As(err, &connect) || connect.Addr != tt.addr || tt.is != nil && !errors.Is(err, tt.is) {
				t.Fatalf("%T: %v", err, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
		})
	}
}

// TestDialName has a host name resolve to several addresses, of which the
// error names all.
func TestDialName(t *testing.T) {
	_, port, _ := net.SplitHostPort(refusing(t))
	_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: "localhost:" + port, Timeout: time.Second, Logger: quiet})
	if err == nil || !strings.Contains(err.Error(), "localhost:"+port) || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("%v", err)
	}
	s := listen(t)
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: fmt.Sprint("localhost:", s.Port())})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestDialRetries has a server that closes the first connections: the client
// comes again, in growing steps, and says once that it does.
func TestDialRetries(t *testing.T) {
	var mu sync.Mutex
	var times []time.Time // when attempts came
	s := listen(t)
	addr := fake(t, func(n int, nc net.Conn) {
		now := time.Now()
		first := make([]byte, 1)
		if io.ReadFull(nc, first); first[0] == 0x16 { // is it a TLS server?
			nc.Close()
			return
		}
		mu.Lock()
		times = append(times, now)
		third := len(times) == 3
		mu.Unlock()
		if !third {
			nc.Close()
			return
		}
		// The third is passed on to a real server.
		to, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		to.Write(first)
		go io.Copy(to, nc)
		io.Copy(nc, to)
	})
	log := &logBuffer{}
	var retries []int
	var paused []time.Time // when the pauses before the others began
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{
		Addr: addr, Logger: slog.New(slog.NewTextHandler(log, nil)),
		OnRetry: func(err *tcpstore.ConnectError, left time.Duration) {
			if left <= 0 || left > 5*time.Minute || err.Err == nil {
				t.Errorf("OnRetry: %v, %v left", err, left)
			}
			retries = append(retries, err.Attempts)
			paused = append(paused, time.Now())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Add(t.Context(), "n", 1); n != 1 || err != nil {
		t.Errorf("add = %d, %v", n, err)
	}
	mu.Lock()
	defer mu.Unlock()
	// 10 ms, then 15 ms, each ± 50 %.
	if !slices.Equal(retries, []int{1, 2}) {
		t.Fatalf("OnRetry after attempts %v", retries)
	}
	for i, want := range []time.Duration{10 * time.Millisecond, 15 * time.Millisecond} {
		if pause := times[i+1].Sub(paused[i]); pause < want/2 {
			t.Errorf("attempt %d came after %v, want about %v", i+2, pause, want)
		}
	}
	if n := strings.Count(log.String(), "no answer yet"); n != 1 {
		t.Errorf("it was logged %d times: %s", n, log)
	}
}

func TestDialCancelled(t *testing.T) {
	cause := errors.New("the cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	addr := fake(t, func(n int, nc net.Conn) { nc.Close(); cancel(cause) })
	_, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: addr, Logger: quiet})
	var connect *tcpstore.ConnectError
	if !errors.Is(err, cause) || !errors.As(err, &connect) {
		t.Errorf("%v", err)
	}
}

// TestTimeout has calls end at the client's own limit, on a good server and on
// one that does not answer.
func TestTimeout(t *testing.T) {
	t.Parallel()
	const limit = enough
	s := listen(t)
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	// A deadline of the context's counts alone.
	late, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Wait(late, "late") }()
	var all sync.WaitGroup
	for name, call := range map[string]func() error{
		"wait":      func() error { return c.Wait(ctx, "never") },
		"get":       func() error { _, err := c.Get(ctx, "never"); return err },
		"multi-get": func() error { _, err := c.MultiGet(ctx, []string{"never"}); return err },
		"queue pop": func() error { _, err := c.QueuePop(ctx, "never", true); return err },
		"barrier":   func() error { return c.Barrier(ctx, "never2", 2) },
	} {
		all.Go(func() {
			err := call()
			var timeout *store.TimeoutError
			if !errors.Is(err, store.ErrTimeout) || !errors.As(err, &timeout) || timeout.Op != name || timeout.After != limit || len(timeout.Keys) != 1 {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	if err := c.Wait(ctx, "never"); !errors.Is(err, store.ErrTimeout) { // longer than the limit in all
		t.Error(err)
	}
	if err := c.Set(ctx, "late", nil); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("wait with a deadline: %v", err)
	}

	addr := fake(t, func(n int, nc net.Conn) {
		shake(t, nc)
		io.Copy(io.Discard, nc)
	})
	mute, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: addr, Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for range 2 { // on a new connection the second time
		if _, err := mute.Add(ctx, "n", 1); !errors.Is(err, store.ErrTimeout) {
			t.Errorf("add at a server that does not answer: %v", err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := mute.Add(short, "n", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("add at a server that does not answer: %v", err)
	}
}

// TestLost has the server go away under a client.
func TestLost(t *testing.T) {
	s := listen(t)
	ctx := t.Context()
	// A wait that begins after the server's end tries to connect for that long.
	c, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: s.Addr().String(), Timeout: 5 * time.Second, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	waiting := make(chan error, 1)
	go func() { waiting <- c.Wait(ctx, "never") }()
	if err := c.Set(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	s.Close()
	var lost *tcpstore.LostError
	var connect *tcpstore.ConnectError
	if err := <-waiting; !errors.As(err, &lost) && !errors.As(err, &connect) {
		t.Errorf("wait: %v", err)
	}
	_, err = c.Add(ctx, "k", 1)
	if !errors.As(err, &lost) || !strings.Contains(err.Error(), s.Addr().String()) {
		t.Fatalf("add: %v", err)
	}
	// The server comes back empty; a client that took it for the old one would
	// continue with half a job.
	again, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: s.Addr().String(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := c.Add(ctx, "k", 1); !errors.As(err, &lost) {
		t.Errorf("add after the server came back: %v", err)
	}
}

func TestClientClose(t *testing.T) {
	s := listen(t)
	c := dial(t, s.Addr().String())
	ctx := t.Context()
	blocked := make(chan error, 2)
	go func() { blocked <- c.Wait(ctx, "never") }()
	go func() { blocked <- c.Barrier(ctx, "never2", 2) }()
	if err := s.Store().Wait(ctx, "never2"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := <-blocked; !errors.Is(err, store.ErrClosed) {
			t.Errorf("a call blocked when the client was closed: %v", err)
		}
	}
	if err := c.Set(ctx, "k", nil); !errors.Is(err, store.ErrClosed) {
		t.Errorf("set: %v", err)
	}
	if err := c.Wait(ctx, "k"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("wait: %v", err)
	}
}

// TestLimits checks that the client does not send what would cost it the
// connection.
func TestLimits(t *testing.T) {
	c := dial(t, listen(t).Addr().String())
	ctx := t.Context()
	key, value := strings.Repeat("k", 8191), make([]byte, 8<<20)
	if err := c.Set(ctx, key, value); err != nil {
		t.Errorf("the longest key and value: %v", err)
	}
	many := make([]string, 131073)
	for name, call := range map[string]func() error{
		"set, key":       func() error { return c.Set(ctx, key+"k", nil) },
		"set, value":     func() error { return c.Set(ctx, "k", append(value, 0)) },
		"get":            func() error { _, err := c.Get(ctx, key+"k"); return err },
		"add":            func() error { _, err := c.Add(ctx, key+"k", 1); return err },
		"cas":            func() error { _, err := c.CompareAndSet(ctx, "k", append(value, 0), nil); return err },
		"cas, desired":   func() error { _, err := c.CompareAndSet(ctx, "k", nil, append(value, 0)); return err },
		"wait":           func() error { return c.Wait(ctx, many...) },
		"check":          func() error { _, err := c.Check(ctx, key+"k"); return err },
		"append":         func() error { return c.Append(ctx, "k", append(value, 0)) },
		"multi-get":      func() error { _, err := c.MultiGet(ctx, many); return err },
		"multi-set":      func() error { return c.MultiSet(ctx, many, make([][]byte, len(many))) },
		"multi-set, one": func() error { return c.MultiSet(ctx, []string{"a", "b"}, [][]byte{nil, append(value, 0)}) },
		"delete":         func() error { _, err := c.Delete(ctx, key+"k"); return err },
		"push":           func() error { return c.QueuePush(ctx, "q", append(value, 0)) },
		"pop":            func() error { _, err := c.QueuePop(ctx, key+"k", true); return err },
		"barrier":        func() error { return c.Barrier(ctx, key+"k", 1) },
	} {
		var limit *tcpstore.LimitError
		if err := call(); !errors.As(err, &limit) || limit.Size != limit.AtMost+1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Add(ctx, "n", 1); err != nil {
		t.Error(err)
	}
	// A value may still grow beyond the limit, and be read.
	for range 3 {
		if err := c.Append(ctx, "grown", value); err != nil {
			t.Fatal(err)
		}
	}
	grown, err := c.Get(ctx, "grown")
	if err != nil || len(grown) != 3*len(value) {
		t.Errorf("%d bytes, %v", len(grown), err)
	}
	// A client may want less.
	modest, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: c.Addr(), MaxValue: int64(len(grown) - 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer modest.Close()
	if _, err := modest.Get(ctx, "grown"); err == nil || !strings.Contains(err.Error(), "announces 25165824 bytes, at most 25165823 are accepted") {
		t.Errorf("with a limit: %v", err)
	}
}

// TestCancelCrossing has the server's answer to a wait cross the cancellation,
// both ways round, and the connection stay usable.
func TestCancelCrossing(t *testing.T) {
	wait := "06" + "0100000000000000" + str("/k")
	check := "05" + "0100000000000000" + str("/k")
	var conns atomic.Int32
	for _, answer := range []string{"01", "0001"} {
		conns.Store(0)
		waits := make(chan struct{}, 1) // the server has a wait
		addr := fake(t, func(n int, nc net.Conn) {
			conns.Add(1)
			if !shake(t, nc) {
				return
			}
			for {
				var b [1]byte
				if _, err := io.ReadFull(nc, b[:]); err != nil {
					return
				}
				switch b[0] {
				case 5:
					io.ReadFull(nc, make([]byte, len(check)/2-1))
					nc.Write([]byte{1})
				case 6:
					io.ReadFull(nc, make([]byte, len(wait)/2-1))
					waits <- struct{}{}
				case 12:
					nc.Write(unhex(answer))
				}
			}
		})
		c := dial(t, addr)
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-waits
				cancel()
			}()
			if err := c.Wait(ctx, "k"); !errors.Is(err, context.Canceled) {
				t.Errorf("answer %s: %v", answer, err)
			}
		}
		if n := conns.Load(); n != 2 {
			t.Errorf("answer %s: %d connections, want one for waits and one for the rest", answer, n)
		}
	}
}

// TestWrongAnswers has a server answer what makes no sense.
func TestWrongAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"a length below zero": "ffffffffffffffff",
		"a huge length":       "0000000000010000",
		"half a value":        "0500000000000000" + "6162",
	} {
		addr := fake(t, func(n int, nc net.Conn) {
			if shake(t, nc) {
				nc.Read(make([]byte, 100))
				nc.Write(unhex(answer))
				nc.Close()
			}
		})
		c := dial(t, addr)
		value, err := c.CompareAndSet(t.Context(), "k", nil, nil)
		var lost *tcpstore.LostError
		if !errors.As(err, &lost) {
			t.Errorf("%s: %q, %v", name, value, err)
		}
	}
}

func TestDialNegativeTimeout(t *testing.T) {
	_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: "127.0.0.1:1", Timeout: -1})
	if err == nil || !strings.Contains(err.Error(), "ClientConfig.Timeout is -1ns") {
		t.Errorf("error %v, want one of the Timeout", err)
	}
}
