package tcpstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// echo answers each line by the same.
func echo(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		conn.Write(line)
	}
}

func session(t testing.TB, addr, name string) net.Conn {
	t.Helper()
	conn, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: addr, Logger: quiet}, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// exchange says something and reads as much.
func exchange(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Errorf("said %q, got %q, %v", text, got, err)
	}
}

func TestSession(t *testing.T) {
	s := listen(t)
	addr := s.Addr().String()
	cfg := tcpstore.ClientConfig{Addr: addr, Logger: quiet}
	if _, err := tcpstore.DialSession(t.Context(), cfg, "echo"); !errors.Is(err, tcpstore.ErrNoSession) {
		t.Errorf("a server without sessions: %v", err)
	}
	s.HandleSession("echo", echo)
	if _, err := tcpstore.DialSession(t.Context(), cfg, "other"); !errors.Is(err, tcpstore.ErrNoSession) {
		t.Errorf("a session of another name: %v", err)
	}
	one, two := session(t, addr, "echo"), session(t, addr, "echo")
	inside, err := s.ServeSession("echo")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	for _, conn := range []net.Conn{one, two, inside} {
		exchange(t, conn, "hello\n")
	}
	one.Close()
	s.Reset()
	exchange(t, two, "still there\n")
	exchange(t, inside, "still there\n")
	s.Close()
	for _, conn := range []net.Conn{two, inside} {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("Close left a session")
		}
	}
}

// Requests of sessions on the wire.
const (
	askSession = "05" + "0100000000000000" + "1100000000000000" + "2f6d75737465722f73657373696f6e2f31"
	enterEcho  = "a7" + "0400000000000000" + "6563686f"
)

// TestSessionWire has a hand-made client: what it sends ahead belongs to the session,
// a refused name leaves the connection in order, and the key is nowhere to be seen.
func TestSessionWire(t *testing.T) {
	s := listen(t)
	w := newWires(t, s)
	w.opened(0)
	w.send(0, unhex(askSession))
	w.expect(0, []byte{1})
	s.HandleSession("echo", echo)
	w.send(0, unhex(askSession))
	w.expect(0, []byte{0})
	w.send(0, unhex("07"+"11"+"a7"+str("other")+"07")) // count, list, a name that is not offered
	w.expect(0, unhex("0000000000000000"+"0000000000000000"+"01"+"0000000000000000"))
	w.send(0, unhex("01"+str("/k")+str("v")+"07"+enterEcho+"61620a")) // SET, count, the session, "ab"
	w.expect(0, unhex("0100000000000000"+"00"+"61620a"))
	w.send(0, []byte("c\n"))
	w.expect(0, []byte("c\n"))
	// A piece of a line only.
	w.opened(1)
	w.send(1, unhex(enterEcho+"61"))
	w.expect(1, []byte{0})
	w.send(1, []byte("b\n"))
	w.expect(1, []byte("ab\n"))

	s.HandleSession("echo", nil)
	w.opened(2)
	w.send(2, unhex(askSession))
	w.expect(2, []byte{1})
	exchange(t, w.conn(0), "sessions go on\n")
}

// TestSessionRefused has a session asked for while a wait is parked.
func TestSessionRefused(t *testing.T) {
	s, log := listenLogged(t)
	s.HandleSession("echo", echo)
	w := newWires(t, s)
	w.opened(0)
	wait := "06" + "0100000000000000" + str("/k")
	w.send(0, unhex("07"+wait+enterEcho))
	w.expect(0, unhex("0000000000000000"))
	w.expectClosed(0)
	// One that is over is not a hindrance, whether another client ended it or a cancel.
	w.opened(1)
	w.opened(2)
	w.send(1, unhex(wait+"07"))
	w.expect(1, make([]byte, 8))
	w.send(2, unhex("01"+str("/k")+str("")+"08"+str("/k")))
	w.expect(2, unhex("0100000000000000"))
	w.expect(1, []byte{0})
	w.send(1, unhex(wait+"0c"+enterEcho+"610a"))
	w.expect(1, unhex("01"+"00"+"610a"))
	s.Close()
	if text := log.String(); !strings.Contains(text, "SESSION while") {
		t.Errorf("the log does not say why: %s", text)
	}
}

// TestSessionFirst has a client come the moment the server listens.
func TestSessionFirst(t *testing.T) {
	var first net.Conn
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Logger: quiet, Prepare: func(s *tcpstore.Server) {
		var err error
		if first, err = net.Dial("tcp", s.Addr().String()); err != nil {
			t.Fatal(err)
		}
		first.Write(unhex("00cef7853c" + askSession))
		s.HandleSession("echo", echo)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer first.Close()
	var b [1]byte
	if _, err := io.ReadFull(first, b[:]); err != nil || b[0] != 0 {
		t.Errorf("%v, %v", b, err)
	}
}

// TestSessionClose has Close wait for handlers, and handlers that begin then.
func TestSessionClose(t *testing.T) {
	s := listen(t)
	began := make(chan struct{}, 2)
	ended, release := make(chan error, 2), make(chan struct{})
	s.HandleSession("slow", func(conn net.Conn) {
		began <- struct{}{}
		_, err := conn.Read(make([]byte, 1))
		<-release
		ended <- err
	})
	session(t, s.Addr().String(), "slow")
	inside, err := s.ServeSession("slow")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	<-began
	<-began
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	if _, err := inside.Read(make([]byte, 1)); err == nil {
		t.Error("the client's end is open")
	}
	select {
	case <-closed:
		t.Error("Close has not waited for the handlers")
	default:
	}
	close(release)
	<-closed
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a handler's read did not end")
		}
	}
	if _, err := s.ServeSession("slow"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("a session of a closed server: %v", err)
	}
	if _, err := s.ServeSession("other"); !errors.Is(err, tcpstore.ErrNoSession) {
		t.Errorf("a session that nobody handles: %v", err)
	}
}

// TestSessionEnds has the handler return: the connection is closed.
func TestSessionEnds(t *testing.T) {
	s := listen(t)
	s.HandleSession("short", func(conn net.Conn) { io.WriteString(conn, "bye") })
	all, err := io.ReadAll(session(t, s.Addr().String(), "short"))
	if string(all) != "bye" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	inside, err := s.ServeSession("short")
	if err != nil {
		t.Fatal(err)
	}
	if all, err = io.ReadAll(inside); string(all) != "bye" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
}

// TestSessionRaces has sessions begin, end, be refused and reset all at once.
func TestSessionRaces(t *testing.T) {
	s := listen(t)
	addr := s.Addr().String()
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: addr, Logger: quiet, Timeout: patience}, "echo")
				if errors.Is(err, tcpstore.ErrNoSession) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				// Once open it outlives every Reset.
				text := fmt.Sprintf("%d\n", i)
				for range 10 {
					exchange(t, conn, text)
				}
				conn.Close()
			}
		})
	}
	for i := range 100 {
		s.HandleSession("echo", echo)
		session, err := s.ServeSession("echo")
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, session, "a\n")
		session.Close()
		if i%10 == 0 {
			s.Reset()
		}
		s.HandleSession("echo", nil)
	}
	close(stop)
	all.Wait()
}

// TestDialSession has no server, one that comes late, and one that goes silent or
// away in the middle.
func TestDialSession(t *testing.T) {
	cfg := tcpstore.ClientConfig{Addr: refusing(t), Logger: quiet, Timeout: 50 * time.Millisecond}
	var connect *tcpstore.ConnectError
	if _, err := tcpstore.DialSession(t.Context(), cfg, "echo"); !errors.As(err, &connect) {
		t.Errorf("no server: %v", err)
	}
	var limit *tcpstore.LimitError
	if _, err := tcpstore.DialSession(t.Context(), cfg, strings.Repeat("x", 9000)); !errors.As(err, &limit) {
		t.Errorf("a long name: %v", err)
	}
	t.Run("strangers", dialSessionStrangers)
	cause := errors.New("the cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	silent := fake(t, func(int, net.Conn) { cancel(cause) })
	if _, err := tcpstore.DialSession(ctx, tcpstore.ClientConfig{Addr: silent, Logger: quiet}, "echo"); !errors.Is(err, cause) {
		t.Errorf("cancelled: %v", err)
	}
}

func dialSessionStrangers(t *testing.T) {
	asked := unhex(handshake + askSession)
	for name, answers := range map[string]struct{ first, second, want string }{
		"silent":             {"0100", "", "stayed silent"},
		"silent at once":     {"01", "", "stayed silent"},
		"no sense":           {"0100", "07", "another protocol"},
		"no sense in CHECK":  {"0109", "", "another protocol"},
		"text":               {"485454502f312e3120343030", "", "HTTP"},
		"closes":             {"0100", "close", "closed the connection"},
		"closes before that": {"close", "", "closed the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := fake(t, func(n int, nc net.Conn) {
				for i, answer := range []string{answers.first, answers.second} {
					n := len(asked)
					if i == 1 {
						n = len(enterEcho) / 2
					}
					if _, err := io.ReadFull(nc, make([]byte, n)); err != nil || answer == "close" {
						nc.Close()
						return
					}
					nc.Write(unhex(answer))
				}
			})
			cfg := tcpstore.ClientConfig{Addr: addr, Logger: quiet, Timeout: enough}
			_, err := tcpstore.DialSession(t.Context(), cfg, "echo")
			var connect *tcpstore.ConnectError
			var seen *tcpstore.NotStoreError
			if !errors.As(err, &connect) || !errors.As(err, &seen) || !strings.Contains(err.Error(), answers.want) || seen.Remote != addr {
				t.Error(err)
			}
		})
	}
}

// mirror is a value that counts what others do with it.
type mirror struct {
	mu              sync.Mutex
	value           string
	renders, adopts int
}

func (m *mirror) Render() ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renders++
	return []byte(m.value), true
}

func (m *mirror) Adopt(value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adopts++
	m.value = string(value)
}

func (m *mirror) set(value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value = value
}

// TestMirror has a client, the server's own view and the mirror change one key.
func TestMirror(t *testing.T) {
	s := listen(t)
	c, view := dial(t, s.Addr().String()), s.Store()
	ctx := t.Context()
	if err := c.Set(ctx, "k", []byte("before")); err != nil {
		t.Fatal(err)
	}
	m := &mirror{}
	m.set("7")
	if existing := s.Mirror("k", m); string(existing) != "before" {
		t.Errorf("the key had %q", existing)
	}
	get := func(want string) {
		t.Helper()
		for _, s := range []store.Store{c, view} {
			if got, err := s.Get(ctx, "k"); err != nil || string(got) != want {
				t.Errorf("%T: %q, %v, want %q", s, got, err, want)
			}
		}
		if m.mu.Lock(); m.value != want {
			t.Errorf("the mirror has %q, want %q", m.value, want)
		}
		m.mu.Unlock()
	}
	get("7")
	if n, err := c.Add(ctx, "k", 3); n != 10 || err != nil {
		t.Errorf("add: %d, %v", n, err)
	}
	get("10")
	if got, err := c.CompareAndSet(ctx, "k", []byte("7"), []byte("x")); string(got) != "10" || err != nil {
		t.Errorf("a swap that loses: %q, %v", got, err)
	}
	if got, err := c.CompareAndSet(ctx, "k", []byte("10"), []byte("x")); string(got) != "x" || err != nil {
		t.Errorf("a swap that wins: %q, %v", got, err)
	}
	get("x")
	m.set("y")
	if got, err := c.CompareAndSet(ctx, "k", []byte("x"), []byte("z")); string(got) != "y" || err != nil {
		t.Errorf("a swap that comes late: %q, %v", got, err)
	}
	if err := c.Append(ctx, "k", []byte("!")); err != nil {
		t.Error(err)
	}
	get("y!")
	big := strings.Repeat("b", 10_000) // read straight into the slice
	if got, err := c.CompareAndSet(ctx, "k", []byte("y!"), []byte(big)); string(got) != big || err != nil {
		t.Errorf("a big swap: %d bytes, %v", len(got), err)
	}
	get(big)
	m.set(strings.Repeat("c", 10_000))
	get(strings.Repeat("c", 10_000))
	if err := c.MultiSet(ctx, []string{"a", "k"}, [][]byte{[]byte("1"), []byte("multi")}); err != nil {
		t.Error(err)
	}
	get("multi")
	if got, err := c.MultiGet(ctx, []string{"k", "a"}); err != nil || string(got[0]) != "multi" {
		t.Errorf("%q, %v", got, err)
	}
	if was, err := c.Delete(ctx, "k"); !was || err != nil {
		t.Errorf("delete: %v, %v", was, err)
	}
	get("")
	if ok, err := c.Check(ctx, "k"); !ok || err != nil {
		t.Errorf("a deleted key: %v, %v", ok, err)
	}
	if n, err := c.NumKeys(ctx); n != 2 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if m.adopts != 6 {
		t.Errorf("the mirror was told %d times", m.adopts)
	}
	m.set("left")
	s.Reset()
	if keys, err := view.ListKeys(ctx); err != nil || len(keys) != 1 || keys[0] != "k" {
		t.Errorf("after a reset: %q, %v", keys, err)
	}
	if got, err := view.Get(ctx, "k"); string(got) != "left" || err != nil {
		t.Errorf("after a reset: %q, %v", got, err)
	}
	s.Unmirror("k")
	s.Unmirror("k")
	s.Unmirror("never")
	if n, err := view.NumKeys(ctx); n != 0 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}

// TestMirrorWait has a client wait for a key that a mirror makes exist.
func TestMirrorWait(t *testing.T) {
	s := listen(t)
	c := dial(t, s.Addr().String())
	waiting := make(chan error, 1)
	go func() { waiting <- c.Wait(t.Context(), "k") }()
	s.Mirror("k", &mirror{})
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}
