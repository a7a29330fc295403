package auth_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/test/testcert"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/store/tcpstore"
)

// patience bounds every wait for what should happen.
const patience = time.Minute

const (
	token = "a token of some length"
	other = "a token of some other length"
)

// A buffer keeps a log.
type buffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	wrote chan struct{} // of one, may be nil
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.wrote <- struct{}{}:
	default:
	}
	return b.b.Write(p)
}

// await waits for a text.
func (b *buffer) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(patience)
	for !strings.Contains(b.String(), text) {
		select {
		case <-b.wrote:
		case <-late:
			t.Fatalf("log: %s, want %q in it", b, text)
		}
	}
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func guard(t testing.TB, cfg auth.Config) tcpstore.Guard {
	t.Helper()
	g, err := auth.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if g == nil {
		return nil
	}
	return g
}

func listen(t testing.TB, cfg auth.Config) (*tcpstore.Server, *buffer) {
	t.Helper()
	log := &buffer{wrote: make(chan struct{}, 1)}
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Guard: guard(t, cfg), Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, log
}

func dial(t testing.TB, s *tcpstore.Server, cfg auth.Config) (*tcpstore.Client, error) {
	t.Helper()
	return tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), Guard: guard(t, cfg), Timeout: patience, Logger: slog.New(slog.DiscardHandler)})
}

// Whoever has what the server asks for is served; all others learn why not, at once.
func TestGuard(t *testing.T) {
	ca, stranger := testcert.New(t), testcert.New(t)
	issue := func(from, trusts *testcert.Authority, token string) auth.Config {
		cert, key := from.Issue()
		return auth.Config{Token: token, CACert: trusts.File, Cert: cert, Key: key}
	}
	secure, both := issue(ca, ca, ""), issue(ca, ca, token)
	foreign, foreignBoth := issue(stranger, stranger, ""), issue(stranger, stranger, token)
	open, shared := auth.Config{}, auth.Config{Token: token}
	for _, tt := range []struct {
		name           string
		server, client auth.Config
		want           string // in the client's error; "" if it is served
		logged         string // by the server
	}{
		{"token", shared, shared, "", ""},
		{"TLS", secure, issue(ca, ca, ""), "", ""},
		{"TLS and token", both, issue(ca, ca, token), "", ""},
		{"another token", shared, auth.Config{Token: other}, "this store has another token", "it has another token"},
		{"no token", shared, open, `takes only agents of its job ("muster: this store takes agents with its token only")`, "it has no token"},
		{"token for nobody", open, shared, "serves everybody, and cannot prove", "an agent with a token, and this store has none"},
		{"another authority", secure, foreign, "certificate signed by unknown authority", "bad certificate"},
		{"another authority and the token", both, foreignBoth, "certificate signed by unknown authority", "bad certificate"},
		{"no TLS", secure, open, `takes only agents of its job ("muster: this store takes TLS only")`, "it does not speak TLS"},
		{"token without TLS", both, shared, "this store takes TLS only", "it does not speak TLS"},
		{"TLS without token", both, secure, "this store takes agents with its token only", "it has no token"},
		{"TLS and another token", both, issue(ca, ca, other), "this store has another token", "it has another token"},
		{"TLS and a token for nobody", secure, both, "this store has no token", "it has a token, and this store none"},
		{"TLS for nobody", open, secure, "serves everybody, and cannot prove", "a TLS client"},
		{"TLS for a token", shared, secure, "the store does not speak TLS", "it has no token"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, log := listen(t, tt.server)
			c, err := dial(t, s, tt.client)
			if err == nil {
				err = c.Set(t.Context(), "k", []byte("v"))
				c.Close()
			}
			log.await(t, tt.logged)
			s.Close()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v; log: %s", err, log)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "; ")):
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
			var fault *tcpstore.ConnectError
			if errors.As(err, &fault) && fault.Attempts > 2 {
				t.Errorf("it took %d attempts", fault.Attempts)
			}
			for _, secret := range []string{token, other} {
				if strings.Contains(log.String(), secret) || err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("a token is shown: %v, %s", err, log)
				}
			}
		})
	}
}

// A certificate of the authority that only its thief's peer checks: the one that connects has
// none that the server takes, though it trusts the server.
func TestStrangerTrusts(t *testing.T) {
	ca, stranger := testcert.New(t), testcert.New(t)
	cert, key := ca.Issue()
	s, log := listen(t, auth.Config{CACert: ca.File, Cert: cert, Key: key})
	trusts := filepath.Join(t.TempDir(), "both.pem")
	var all []byte
	for _, file := range []string{ca.File, stranger.File} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	if err := os.WriteFile(trusts, all, 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key = stranger.Issue()
	_, err := dial(t, s, auth.Config{CACert: trusts, Cert: cert, Key: key})
	if err == nil || !strings.Contains(err.Error(), "refuses this agent's certificate") {
		t.Errorf("got %v", err)
	}
	log.await(t, "unknown authority")
	s.Close()
	if s.Refused() != 1 {
		t.Errorf("%d refused; log: %s", s.Refused(), log)
	}
}

// TLS 1.2, whose handshake anybody can read, is not spoken, not even by who has a good certificate.
func TestOldTLS(t *testing.T) {
	ca := testcert.New(t)
	cert, key := ca.Issue()
	s, log := listen(t, auth.Config{CACert: ca.File, Cert: cert, Key: key})
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{
		MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"muster-agents/1"}, InsecureSkipVerify: true,
	})
	if err == nil {
		nc.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "protocol version not supported") {
		t.Errorf("got %v", err)
	}
	log.await(t, "client offered only unsupported versions")
}

// A session, calls that block, and values of all sizes work inside TLS as without.
func TestInside(t *testing.T) {
	ca := testcert.New(t)
	cert, key := ca.Issue()
	cfg := auth.Config{Token: token, CACert: ca.File, Cert: cert, Key: key}
	s, _ := listen(t, cfg)
	s.HandleSession("echo", func(nc net.Conn) { io.Copy(nc, nc) })
	nc, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), Guard: guard(t, cfg)}, "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	big := bytes.Repeat([]byte("x"), 1<<20)
	go nc.Write(big)
	if _, err := io.ReadFull(nc, make([]byte, len(big))); err != nil {
		t.Error(err)
	}
	a, err := dial(t, s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	b, err := dial(t, s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.Last()
	waited := make(chan error)
	go func() { waited <- a.Wait(t.Context(), "later") }()
	if err := b.Set(t.Context(), "later", big); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if value, err := a.Get(t.Context(), "later"); err != nil || !bytes.Equal(value, big) {
		t.Errorf("%d bytes, %v", len(value), err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := a.Wait(short, "never"); err == nil {
		t.Error("a key that nobody set was there")
	}
	if _, err := a.Add(t.Context(), "n", 1); err != nil {
		t.Errorf("after a wait that was given up: %v", err)
	}
}

// raw sends bytes and returns all that comes back.
func raw(t testing.TB, s *tcpstore.Server, send ...string) string {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	for _, text := range send {
		io.WriteString(nc, text)
	}
	b, _ := io.ReadAll(nc)
	return string(b)
}

// relay copies what a client and a server say and records what the client did.
func relay(t *testing.T, s *tcpstore.Server) (addr string, said func() string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	record := &buffer{}
	var all sync.WaitGroup
	all.Go(func() {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			return
		}
		all.Go(func() { io.Copy(client, server); client.Close() })
		io.Copy(io.MultiWriter(server, record), client)
		server.Close()
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String(), record.String
}

// What an agent has said, said again by somebody else, is refused, and so is what the store
// has said.
func TestReplay(t *testing.T) {
	s, log := listen(t, auth.Config{Token: token})
	addr, said := relay(t, s)
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: addr, Guard: guard(t, auth.Config{Token: token})})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if answer := raw(t, s, said()); !strings.Contains(answer, "this store has another token") || strings.Count(answer, "\xaamuster\x01") != 1 {
		t.Errorf("a replay was answered by %q", answer)
	}
	// Its own words, as those of a client.
	nc, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	hello := make([]byte, 40)
	io.WriteString(nc, said()[:40])
	if _, err := io.ReadFull(nc, hello); err != nil {
		t.Fatal(err)
	}
	nc.Write(hello[:32]) // instead of a proof
	if b, _ := io.ReadAll(nc); !strings.HasPrefix(string(b), "muster: ") {
		t.Errorf("answered by %q", b)
	}
	s.Close()
	if s.Refused() != 2 || !strings.Contains(log.String(), "it has another token") {
		t.Errorf("%d refused; log: %s", s.Refused(), log)
	}
	if keys, _ := s.Store().ListKeys(t.Context()); len(keys) > 1 {
		t.Errorf("keys: %q", keys)
	}
}

// With TLS, too, what an agent has said is of no use to whoever has recorded it.
func TestReplayTLS(t *testing.T) {
	ca := testcert.New(t)
	cert, key := ca.Issue()
	cfg := auth.Config{Token: token, CACert: ca.File, Cert: cert, Key: key}
	s, _ := listen(t, cfg)
	addr, said := relay(t, s)
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: addr, Guard: guard(t, cfg)})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Add(t.Context(), "n", 1); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	c.Close()
	raw(t, s, said())
	if value, err := s.Store().Get(t.Context(), "n"); err != nil || string(value) != "1" {
		t.Errorf("a replay has made it %q, %v", value, err)
	}
	s.Close()
	if s.Refused() != 1 {
		t.Errorf("%d refused", s.Refused())
	}
}

// Somebody who has the endpoint and sends an agent its own words does not pass for the store.
func TestReflection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		b := make([]byte, 72)
		io.ReadFull(nc, b[:40])
		nc.Write(b[:40])
		io.ReadFull(nc, b[40:])
		nc.Write(append([]byte{0xaa}, b[40:]...))
		io.Copy(io.Discard, nc)
	}()
	_, err = tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: l.Addr().String(), Guard: guard(t, auth.Config{Token: token}), Timeout: patience})
	if err == nil || !strings.Contains(err.Error(), "has not proved that it has the token") {
		t.Errorf("got %v", err)
	}
}

// With TLS, somebody in the middle who has a certificate, and passes on what both ends prove,
// gets nowhere: the proofs are of two connections.
func TestRelayed(t *testing.T) {
	ca := testcert.New(t)
	config := func(token string) auth.Config {
		cert, key := ca.Issue()
		return auth.Config{Token: token, CACert: ca.File, Cert: cert, Key: key}
	}
	s, _ := listen(t, config(token))
	middle := auth.Relay(t, config(""), s.Addr().String())
	_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: middle, Guard: guard(t, config(token)), Timeout: patience})
	if err == nil || !strings.Contains(err.Error(), "this store has another token") {
		t.Errorf("got %v", err)
	}
}

// Thousands of strangers do not keep an agent out.
func TestFlood(t *testing.T) {
	ca := testcert.New(t)
	cert, key := ca.Issue()
	for _, tt := range []struct {
		name string
		cfg  auth.Config
		n    int64
	}{
		{"token", auth.Config{Token: token}, 10_000},
		{"TLS", auth.Config{CACert: ca.File, Cert: cert, Key: key}, 1000},
	} {
		t.Run(tt.name, func(t *testing.T) { flood(t, tt.cfg, tt.n) })
	}
}

func flood(t *testing.T, cfg auth.Config, n int64) {
	s, log := listen(t, cfg)
	const atOnce = 100
	garbage := []string{"", "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04", "GET / HTTP/1.0\r\n\r\n", "\xaamuster\x01", "\x16\x03\x01\x02\x00", strings.Repeat("\xaa", 100)}
	var left atomic.Int64
	var all sync.WaitGroup
	left.Store(n)
	for range atOnce {
		all.Go(func() {
			for i := left.Add(-1); i >= 0; i = left.Add(-1) {
				nc, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(nc, garbage[i%int64(len(garbage))])
				nc.(*net.TCPConn).CloseWrite()
				nc.SetDeadline(time.Now().Add(patience))
				io.Copy(io.Discard, nc)
				nc.Close()
			}
		})
	}
	c, err := dial(t, s, cfg)
	if err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	all.Wait()
	s.Close()
	lines := strings.Count(log.String(), "\n")
	if s.Refused() < n/2 || lines > 20 {
		t.Errorf("%d were refused, with %d lines: %s", s.Refused(), lines, log)
	}
}

// One that says nothing, or too little, is not waited for.
func TestSilent(t *testing.T) {
	for _, said := range []string{"", "\xaamus"} {
		synctest.Test(t, func(t *testing.T) {
			g, err := auth.New(auth.Config{Token: token})
			if err != nil {
				t.Fatal(err)
			}
			client, server := net.Pipe()
			defer client.Close()
			go io.WriteString(client, said)
			start := time.Now()
			_, err = g.Accept(server)
			if took := time.Since(start); err == nil || took > 10*time.Second {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
}

// ended is a connection from which some bytes come.
type ended struct {
	net.Conn
	in   *strings.Reader
	sent int
}

func (e *ended) Read(b []byte) (int, error)       { return e.in.Read(b) }
func (e *ended) Write(b []byte) (int, error)      { e.sent += len(b); return len(b), nil }
func (e *ended) SetDeadline(time.Time) error      { return nil }
func (e *ended) SetReadDeadline(time.Time) error  { return nil }
func (e *ended) SetWriteDeadline(time.Time) error { return nil }
func (e *ended) Close() error                     { return nil }

// FuzzHandshake lets either end read what it likes: nobody gets in, nothing panics, and what
// is read and said has a bound.
func FuzzHandshake(f *testing.F) {
	hello := "\xaamuster\x01" + strings.Repeat("n", 32)
	f.Add("")
	f.Add(hello + strings.Repeat("p", 32))
	f.Add(hello + "\xaa" + strings.Repeat("p", 32))
	f.Add("muster: this store has another token\r\n")
	f.Add("muster: " + strings.Repeat("x", 1000))
	f.Add("\x00\xce\xf7\x85\x3c")
	f.Add("\x15\x03\x01\x00\x02\x02\x28")
	g, err := auth.New(auth.Config{Token: token})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in string) {
		for _, end := range []func(net.Conn) (net.Conn, error){
			g.Accept, func(nc net.Conn) (net.Conn, error) { return g.Connect(context.Background(), nc) },
		} {
			nc := &ended{in: strings.NewReader(in)}
			if _, err := end(nc); err == nil || len(err.Error()) > 2000 {
				t.Errorf("after %q: %v", in, err)
			}
			if read := len(in) - nc.in.Len(); read > 300 || nc.sent > 200 {
				t.Errorf("after %q: %d bytes read, %d sent", in, read, nc.sent)
			}
		}
	})
}

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", token+"\r\n", 0o600)
	link := filepath.Join(dir, "link") // as Kubernetes mounts a Secret
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{good, link, write("group", token, 0o440)} {
		if text, err := auth.ReadSecret("token_file", path); err != nil || text != token {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	for _, tt := range []struct{ path, want string }{
		{write("world", token, 0o604), "other users can read or change"},
		{write("writable", token, 0o620), "chmod 600"},
		{write("empty", "\n", 0o600), "is empty"},
		{write("long", strings.Repeat("x", 5000), 0o600), "more than 4096 bytes"},
		{dir, "is not a file"},
		{"/dev/zero", "is not a file"},
		{filepath.Join(dir, "none"), "no such file"},
	} {
		if _, err := auth.ReadSecret("token_file", tt.path); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v, want %q in it", tt.path, err, tt.want)
		}
	}
}

func TestNewErrors(t *testing.T) {
	ca, stranger := testcert.New(t), testcert.New(t)
	cert, key := stranger.Issue()
	for _, tt := range []struct {
		cfg  auth.Config
		want string
	}{
		{auth.Config{Token: "short"}, "the token has 5 bytes"},
		{auth.Config{TokenFile: "/nowhere"}, "token_file: open /nowhere"},
		{auth.Config{CACert: ca.File}, "give cacert, cert and key together"},
		{auth.Config{Cert: cert, Key: key}, "give cacert, cert and key together"},
		{auth.Config{CACert: ca.File, Cert: cert, Key: key}, "other agents would refuse"},
		{auth.Config{CACert: key, Cert: cert, Key: key}, "has no certificate in PEM"},
		{auth.Config{CACert: ca.File, Cert: cert, Key: "/nowhere"}, "cert and key: open /nowhere"},
	} {
		if g, err := auth.New(tt.cfg); g != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q in it", tt.cfg, err, tt.want)
		}
	}
	if g, err := auth.New(auth.Config{}); g != nil || err != nil {
		t.Errorf("nothing asked for: %v, %v", g, err)
	}
}
