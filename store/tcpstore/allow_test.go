package tcpstore_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/store/tcpstore"
)

// from connects from an address of this host and reports whether the server
// serves it.
func from(t *testing.T, local, addr string) bool {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	nc, err := d.DialContext(t.Context(), "tcp", addr)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skipf("this system has no address %s", local)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	nc.Write(unhex("00cef7853c" + "07"))
	_, err = io.ReadFull(nc, make([]byte, 8))
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("neither served nor closed")
	}
	return err == nil
}

func TestAllow(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	for _, tt := range []struct {
		name    string
		allow   []netip.Prefix
		addr    string
		local   string
		refused int64
	}{
		{"everybody", nil, "127.0.0.1:0", "127.0.0.1", 0},
		{"this one", prefixes("127.0.0.1/32"), "127.0.0.1:0", "127.0.0.1", 0},
		{"a network", prefixes("10.0.0.0/8", "127.0.0.0/8"), "127.0.0.1:0", "127.0.0.1", 0},
		{"not masked", prefixes("127.1.2.3/8"), "127.0.0.1:0", "127.0.0.1", 0},
		{"another network", prefixes("10.0.0.0/8"), "127.0.0.1:0", "127.0.0.1", 1},
		{"another host", prefixes("127.0.0.2/32"), "127.0.0.1:0", "127.0.0.1", 1},
		{"mapped to IPv6", prefixes("::ffff:127.0.0.0/104"), "127.0.0.1:0", "127.0.0.1", 0},
		{"a listener of both families", prefixes("127.0.0.1/32"), ":0", "127.0.0.1", 0},
		{"a listener of both families refuses", prefixes("::1/128"), ":0", "127.0.0.1", 1},
		{"all of IPv6 is none of IPv4", prefixes("::/0"), ":0", "127.0.0.1", 1},
		{"IPv6", prefixes("::1/128"), "[::1]:0", "::1", 0},
		{"IPv6 refused", prefixes("127.0.0.0/8", "fd00::/8"), "[::1]:0", "::1", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.local == "::1" && !hasIPv6() {
				t.Skip("this system has no IPv6")
			}
			log := &logBuffer{}
			s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: tt.addr, Allow: tt.allow, Logger: slog.New(slog.NewTextHandler(log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_, port, _ := net.SplitHostPort(s.Addr().String())
			if served := from(t, tt.local, net.JoinHostPort(tt.local, port)); served != (tt.refused == 0) {
				t.Errorf("served: %v", served)
			}
			if n := s.Refused(); n != tt.refused {
				t.Errorf("%d were refused, want %d", n, tt.refused)
			}
			if text := log.String(); strings.Contains(text, "not in an allowed network") != (tt.refused > 0) {
				t.Errorf("log: %s", text)
			}
		})
	}
	if _, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Allow: []netip.Prefix{{}}}); err == nil {
		t.Error("a network that is none was taken")
	}
}

// TestAllowLog has many refused: the log has two lines, and the second counts
// those that had none.
func TestAllowLog(t *testing.T) {
	log := &logBuffer{}
	s, err := tcpstore.Listen(tcpstore.ServerConfig{
		Addr: "127.0.0.1:0", Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	const n = 50
	for range n {
		if from(t, "127.0.0.1", s.Addr().String()) {
			t.Error("it was served")
		}
	}
	s.Close()
	s.Close()
	if s.Refused() != n {
		t.Errorf("%d were refused", s.Refused())
	}
	text := log.String()
	if strings.Count(text, "\n") != 2 || !strings.Contains(text, "refused=1\n") || !strings.Contains(text, "refused=49\n") ||
		!strings.Contains(text, "192.0.2.0/24") || !strings.Contains(text, "remote=127.0.0.1:") {
		t.Errorf("log: %s", text)
	}
}

// TestBind listens on one address of several.
func TestBind(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs 127.0.0.2")
	}
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.2:0", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Addr().String())
	if !from(t, "127.0.0.1", "127.0.0.2:"+port) {
		t.Error("its own address is not served")
	}
	if nc, err := net.Dial("tcp", "127.0.0.1:"+port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another address: %v, %v", nc, err)
	}
}
