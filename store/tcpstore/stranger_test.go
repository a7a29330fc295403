package tcpstore_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testcert"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/store/tcpstore"
)

// TestStrangers dials what is not a TCPStore. Those that say what they are are
// given up at once, the others within the timeout.
func TestStrangers(t *testing.T) {
	const short, long = enough, patience
	says := func(text string) func(t *testing.T) string {
		return func(t *testing.T) string {
			return fake(t, func(_ int, nc net.Conn) { io.WriteString(nc, text); io.Copy(io.Discard, nc) })
		}
	}
	for _, tt := range []struct {
		name    string
		serve   func(t *testing.T) string
		timeout time.Duration
		at      time.Duration // at least, before it is given up; 0: long before the timeout
		want    []string
	}{
		{"HTTP", webServer, long, 0, []string{"answered like an HTTP server", "400 Bad Request", "another service"}},
		{"HTTP in Python", pythonServer("web"), long, 0, []string{"answered like an HTTP server"}},
		{"TLS", tlsServer, long, 0, []string{"answered like a TLS server", "not encrypted"}},
		{"TLS in OpenSSL", pythonServer("tls"), long, 0, []string{"answered like a TLS server", "not encrypted"}},
		{"TLS that sends an alert", says("\x15\x03\x01\x00\x02\x02\x46"), long, 0, []string{"answered like a TLS server"}},
		{"SSH", says("SSH-2.0-OpenSSH_9.2\r\n"), long, 0, []string{"answered like an SSH server", "OpenSSH_9.2"}},
		{"HTML", says("<!DOCTYPE html>"), long, 0, []string{"answered like an HTTP server"}},
		{"another one", says("-ERR unknown command\r\n"), long, 0, []string{"another protocol", "-ERR unknown"}},
		{"binary", says("\x02\xff\x00"), long, 0, []string{"another protocol", `\x02\xff`}},
		{"silent", says(""), short, short, []string{"stayed silent for ", "s; check", "another service"}},
		{"closes at once", closing, short, short, []string{"closed the connection without an answer", "that it admits this host", "PyTorch 1.x"}},
		{"closes again and again", closing, 2 * short, 2 * short, []string{"closed the connection without an answer", "tried"}},
		{"nobody accepts", backlog, short, short, []string{"stayed silent"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr := tt.serve(t)
			start := time.Now()
			_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: addr, Timeout: tt.timeout, Logger: quiet})
			took := time.Since(start)
			var connect *tcpstore.ConnectError
			var seen *tcpstore.NotStoreError
			if !errors.As(err, &connect) || !errors.As(err, &seen) || seen.Remote != addr {
				t.Fatalf("%T: %v", err, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
			if took < tt.at || tt.at == 0 && took > tt.timeout/2 {
				t.Errorf("it took %v: %v", took, err)
			}
		})
	}
}

// webServer answers when it has seen the end of a request, as Go's does.
func webServer(t *testing.T) string {
	return fake(t, func(_ int, nc net.Conn) {
		in := bufio.NewReader(nc)
		for {
			if line, err := in.ReadString('\n'); err != nil || line == "\r\n" {
				io.WriteString(nc, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request")
				io.Copy(io.Discard, nc)
				return
			}
		}
	})
}

// tlsServer closes what does not begin as TLS does, as Go's and OpenSSL's do.
func tlsServer(t *testing.T) string {
	return fake(t, func(_ int, nc net.Conn) {
		defer nc.Close()
		head := make([]byte, 5)
		if _, err := io.ReadFull(nc, head); err != nil || head[0] != 0x16 || head[1] != 3 {
			return
		}
		if _, err := io.ReadFull(nc, make([]byte, int(head[3])<<8|int(head[4]))); err == nil {
			nc.Write(unhex("15030100020228")) // handshake failure
		}
	})
}

// pythonServer starts a real server of Python's.
func pythonServer(kind string) func(t *testing.T) string {
	return func(t *testing.T) string {
		cmd := exec.CommandContext(t.Context(), pypeer.Python(t), "-u", "testdata/strangers.py", kind)
		cmd.Stderr = &bytes.Buffer{}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		port, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		return "127.0.0.1:" + strings.TrimSpace(port)
	}
}

func closing(t *testing.T) string { return fake(t, func(_ int, nc net.Conn) { nc.Close() }) }

// backlog is a server that does not accept, whose kernel does.
func backlog(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

// TestStrangerElsewhere has one address of a host refuse and another one answer
// in another protocol: the latter says more.
func TestStrangerElsewhere(t *testing.T) {
	addr := webServer(t)
	_, port, _ := net.SplitHostPort(addr)
	_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: "localhost:" + port, Timeout: patience, Logger: quiet})
	if err == nil || !strings.Contains(err.Error(), "answered like an HTTP server") {
		t.Errorf("%v", err)
	}
}

// TestOpenToAll has a client that wants proof at real servers, some of which are silent then: it
// learns that they have none to give.
func TestOpenToAll(t *testing.T) {
	ca := testcert.New(t)
	cert, key := ca.Issue()
	for _, libuv := range []bool{true, false} {
		addr := startServers(t, libuv).open(t)
		for name, cfg := range map[string]auth.Config{"token": {Token: "the token of this job"}, "TLS": {CACert: ca.File, Cert: cert, Key: key}} {
			t.Run(fmt.Sprintf("libuv=%v with %s", libuv, name), func(t *testing.T) {
				t.Parallel()
				_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: addr, Guard: guard(t, cfg), Timeout: patience, Logger: quiet})
				fault, ok := errors.AsType[*tcpstore.ConnectError](err)
				if !ok || fault.Attempts > 2 || !strings.Contains(err.Error(), "serves everybody, and cannot prove that it belongs to the job") ||
					!strings.Contains(err.Error(), "; a store of PyTorch's cannot hold a job with a token") {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// A late guard answers the first connection once it has refused the second.
type late struct {
	tcpstore.Guard
	came    atomic.Int32
	refused chan struct{}
}

func (g *late) Accept(nc net.Conn) (net.Conn, error) {
	if g.came.Add(1) > 1 {
		defer close(g.refused)
		return g.Guard.Accept(nc)
	}
	<-g.refused
	return g.Guard.Accept(nc)
}

// TestGuardLate has a server with a guard take its time: the client continues waiting.
func TestGuardLate(t *testing.T) {
	g := guard(t, auth.Config{Token: "the token of this job"})
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Guard: &late{Guard: g, refused: make(chan struct{})}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), Guard: g, Timeout: patience, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	s.Close() // it has counted then
	if n := s.Refused(); n != 1 {
		t.Errorf("%d connections were refused, want the one that asks", n)
	}
}

func guard(t *testing.T, cfg auth.Config) tcpstore.Guard {
	t.Helper()
	g, err := auth.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
