package health_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/test/testproc"
)

// dial connects to a server and closes the connection when the test ends.
func dial(t *testing.T, s *health.Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testproc.Patience))
	return c
}

// ask writes to a connection and returns the status line of the answer.
func ask(t *testing.T, c net.Conn, request string) string {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

const probe = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

func TestBadRequests(t *testing.T) {
	s, _ := serve(t, running(), nil)
	for _, tt := range []struct{ name, request, status string }{
		{"no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", "HTTP/1.1 400 Bad Request"},
		{"no Host", "GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request: missing required Host header"},
		{"HTTP/1.0", "GET /healthz HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK"},
		{"another host", "GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 403 Forbidden"},
		{"another host in the URL", "GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 403 Forbidden"},
		{"long header", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 16<<10) + "\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large"},
		{"long path", "GET /" + strings.Repeat("x", 16<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large"},
		{"endless body", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9223372036854775807\r\n\r\nxxxx", "HTTP/1.1 405 Method Not Allowed"},
		{"two lengths", "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK"},
		{"proxy", "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ask(t, dial(t, s), tt.request); got != tt.status {
				t.Errorf("got %q, want %q", got, tt.status)
			}
		})
	}
}

// TestSlowloris: connections that say nothing, or half of something, or that have
// been answered and stay, keep nobody out.
func TestSlowloris(t *testing.T) {
	const most = 8
	for name, begin := range map[string]string{"silent": "", "half a request": "GET /healthz HTT", "answered": probe} {
		t.Run(name, func(t *testing.T) {
			s, _ := serve(t, running(), func(c *health.Config) { c.MaxConns = most })
			var slow []net.Conn
			for range 3 * most {
				c := dial(t, s)
				if begin == probe {
					if got := ask(t, c, probe); got != "HTTP/1.1 200 OK" {
						t.Fatalf("got %q", got)
					}
				} else if _, err := io.WriteString(c, begin); err != nil {
					t.Fatal(err)
				}
				slow = append(slow, c)
			}
			if got := ask(t, dial(t, s), probe); got != "HTTP/1.1 200 OK" {
				t.Errorf("the probe: %q", got)
			}
			// The oldest were closed for it.
			for i, c := range slow[:2*most] {
				if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("connection %d is still open", i)
				}
			}
		})
	}
}

// TestNoRoom: where every connection is being answered, a further one is refused at
// once.
func TestNoRoom(t *testing.T) {
	const most = 4
	f := running()
	entered, gate := make(chan struct{}, most), make(chan struct{})
	f.hold = func(context.Context) { entered <- struct{}{}; <-gate }
	s, _ := serve(t, f, func(c *health.Config) { c.MaxConns = most; c.Refresh = time.Hour })
	big := "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
	var wg sync.WaitGroup
	for range 50 {
		c := dial(t, s)
		wg.Go(func() {
			r := bufio.NewReader(c)
			if _, err := io.WriteString(c, big); err != nil {
				return
			}
			line, err := r.ReadString('\n')
			if err == nil && !strings.HasPrefix(line, "HTTP/1.1 200") && !strings.HasPrefix(line, "HTTP/1.1 503") {
				t.Errorf("got %q", line)
			}
		})
	}
	<-entered
	close(gate)
	wg.Wait()
	if n, _ := f.asked(); n != 1 {
		t.Errorf("the source was asked %d times", n)
	}
	if got := ask(t, dial(t, s), probe); got != "HTTP/1.1 200 OK" {
		t.Errorf("afterwards: %q", got)
	}
}

// TestLoad: a thousand requests from many clients at once are all answered, and
// the source is asked a few times.
func TestLoad(t *testing.T) {
	f := running()
	_, url := serve(t, f, nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 50}}
	defer client.CloseIdleConnections()
	began := time.Now()
	const clients, each = 50, 20
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range each {
				answer, err := client.Get(url + []string{"/", "/v1/state", "/metrics", "/healthz"}[i%4])
				if err != nil {
					t.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if err != nil || answer.StatusCode != 200 {
					t.Errorf("%s: %v", answer.Status, err)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if states, scrapes := f.asked(); states > int(took/(100*time.Millisecond))+2 || scrapes > int(took/(100*time.Millisecond))+2 {
		t.Errorf("the source was asked %d and %d times in %v", states, scrapes, took)
	}
}

// TestServeEnds: when Serve returns, the source is not being asked any more, and
// idle connections have not held it up.
func TestServeEnds(t *testing.T) {
	f := running()
	entered, left := make(chan struct{}), make(chan struct{})
	f.hold = func(ctx context.Context) {
		close(entered)
		<-ctx.Done()
		close(left)
	}
	s, err := health.Listen(health.Config{Addr: "0", Source: f})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	c := dial(t, s)
	dial(t, s) // says nothing
	if _, err := fmt.Fprint(c, "GET /v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-entered
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	select {
	case <-left:
	default:
		t.Error("Serve has returned while the source is being asked")
	}
	if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
		c.Close()
		t.Error("the port is still open")
	}
}

// A held listener's connections write only once the listener was closed, and are given the
// time to be closed, too.
type heldListener struct {
	net.Listener
	end    func()
	closed chan struct{}
	once   sync.Once
}

func (l *heldListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func (l *heldListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &heldConn{Conn: c, l: l, closed: make(chan struct{})}, err
}

type heldConn struct {
	net.Conn
	l      *heldListener
	closed chan struct{}
	once   sync.Once
}

func (c *heldConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *heldConn) Write(p []byte) (int, error) {
	c.l.end()
	<-c.l.closed
	select {
	case <-c.closed:
	case <-time.After(100 * time.Millisecond):
	}
	return c.Conn.Write(p)
}

// An answer that is not written yet when the server ends is sent whole.
func TestServeEndsWithAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, err := health.Listen(health.Config{Listener: &heldListener{Listener: l, end: cancel, closed: make(chan struct{})}, Source: running()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	r, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if body, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK || len(body) == 0 {
		t.Errorf("status %d, %q, %v", r.StatusCode, body, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
}
