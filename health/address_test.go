package health_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/health"
)

func TestParseAddr(t *testing.T) {
	for _, tt := range []struct {
		addr, network, address, reason string
	}{
		{addr: "9000", network: "tcp", address: "127.0.0.1:9000"},
		{addr: ":9000", network: "tcp", address: "127.0.0.1:9000"},
		{addr: "0", network: "tcp", address: "127.0.0.1:0"},
		{addr: "0.0.0.0:9000", network: "tcp", address: "0.0.0.0:9000"},
		{addr: "[::]:9000", network: "tcp", address: "[::]:9000"},
		{addr: "node7:09000", network: "tcp", address: "node7:9000"},
		{addr: "unix:/run/muster.sock", network: "unix", address: "/run/muster.sock"},
		{addr: "", reason: "there is no port"},
		{addr: "node7:", reason: "there is no port"},
		{addr: "abc", reason: `port "abc" is not a number`},
		{addr: "-1", reason: `port "-1" is not a number`},
		{addr: "9000.5", reason: `port "9000.5" is not a number`},
		{addr: " 9000", reason: `port " 9000" is not a number`},
		{addr: "65536", reason: "port 65536 is more than 65535"},
		{addr: "99999999999999999999", reason: "port 99999999999999999999 is more than 65535"},
		{addr: "::1:9000", reason: "too many colons in address"},
		{addr: "[::1", reason: "missing ']' in address"},
		{addr: "unix:", reason: "no path after unix:"},
		{addr: "unix:/" + strings.Repeat("x", 200), reason: "a path of 201 bytes is longer than sockets may have (103)"},
	} {
		t.Run(tt.addr, func(t *testing.T) {
			network, address, err := health.ParseAddr(tt.addr)
			if network != tt.network || address != tt.address || (err != nil) != (tt.reason != "") {
				t.Errorf("got %q %q %v, want %q %q %q", network, address, err, tt.network, tt.address, tt.reason)
			}
			if want := fmt.Sprintf("health address %q: %s; give a port such as 9000", tt.addr, tt.reason); err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("error %q, want %q", err, want)
			}
		})
	}
}

func FuzzParseAddr(f *testing.F) {
	for _, addr := range []string{"9000", ":9000", "0.0.0.0:1", "[::]:0", "unix:/x", "a:b:c", ":", "unix:"} {
		f.Add(addr)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		network, address, err := health.ParseAddr(addr)
		if (err == nil) != (network != "") || (err == nil) != (address != "") {
			t.Fatalf("got %q %q %v", network, address, err)
		}
		if network == "tcp" {
			if _, _, err := net.SplitHostPort(address); err != nil {
				t.Fatalf("%q became %q: %v", addr, address, err)
			}
		}
	})
}

func TestListenErrors(t *testing.T) {
	taken := listen(t, running(), nil).Addr().String()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	live := filepath.Join(dir, "live")
	listen(t, running(), func(c *health.Config) { c.Addr = "unix:" + live })
	for _, tt := range []struct {
		name, addr string
		cause      error
		says       string
	}{
		{"port in use", taken, syscall.EADDRINUSE, "another process listens there, perhaps the agent of another job; give another port, or 0 for any"},
		{"another host's address", "192.0.2.1:9000", syscall.EADDRNOTAVAIL, "0.0.0.0 means all of them"},
		{"a plain file", "unix:" + plain, nil, "is not a socket (-rw-------) and is left alone: remove it, or choose another path"},
		{"a live socket", "unix:" + live, nil, "is in use by another program: choose another path"},
		{"no directory", "unix:" + filepath.Join(dir, "no", "socket"), syscall.ENOENT, "no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := health.Listen(health.Config{Addr: tt.addr, Source: running()})
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			if tt.cause != nil && !errors.Is(err, tt.cause) {
				t.Errorf("got %T %v, want one of %v", err, err, tt.cause)
			} else if !strings.Contains(err.Error(), tt.says) || !strings.HasPrefix(err.Error(), "health address "+tt.addr+": ") {
				t.Errorf("error %q does not say %q and name the address", err, tt.says)
			}
		})
	}
	if text, _ := os.ReadFile(plain); string(text) != "keep me" {
		t.Errorf("the plain file is now %q", text)
	}
	if _, err := health.Listen(health.Config{Addr: "0"}); err == nil {
		t.Error("no error without a Source")
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "muster.sock")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()

	_, _ = serve(t, running(), func(c *health.Config) { c.Addr = "unix:" + path })
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v, want mode 0600", info, err)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://any.name/readyz")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("status %s", answer.Status)
	}
}

func TestListenNegative(t *testing.T) {
	for want, cfg := range map[string]health.Config{
		"MaxConns -1":  {Source: running(), Addr: "127.0.0.1:0", MaxConns: -1},
		"Timeout -1ns": {Source: running(), Addr: "127.0.0.1:0", Timeout: -1},
		"Refresh -1ns": {Source: running(), Addr: "127.0.0.1:0", Refresh: -1},
	} {
		if _, err := health.Listen(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Close ends Serve, which returns nil.
func TestCloseEndsServe(t *testing.T) {
	s := listen(t, running(), nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	r, err := http.Get("http://" + s.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
