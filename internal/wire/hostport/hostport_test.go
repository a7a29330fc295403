package hostport_test

import (
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/wire/hostport"
)

// Source: spec/rendezvous.md A.1.
func TestSplit(t *testing.T) {
	tests := []struct {
		endpoint string
		host     string
		port     int
		err      string
	}{
		{"", "localhost", 29400, ""},
		{"localhost:0", "localhost", 0, ""},
		{"node1", "node1", 29400, ""},
		{"node1:1234", "node1", 1234, ""},
		{" node1:1 ", "node1", 1, ""},
		{":1234", "localhost", 1234, ""},
		{"10.0.0.1:65535", "10.0.0.1", 65535, ""},
		{"[::1]", "::1", 29400, ""},
		{"[fe80::1]:7", "fe80::1", 7, ""},
		{"fe80::1", "fe80::1", 29400, ""},
		{"node1:", "", 0, "port is empty"},
		{"node1:65536", "", 0, "port"},
		{"node1:-1", "", 0, "port"},
		{"node1:x", "", 0, "port"},
		{"a:b:c", "", 0, "too many colons"},
		{"u:PW@node1:3", "", 0, "password_file"},
		{"[::1", "", 0, "bracket"},
		{"[node1]:3", "", 0, "IPv6"},
		{"[::1]x", "", 0, "bracket"},
		{"[::1]:", "", 0, "port is empty"},
		{"a b:3", "", 0, "not a host name"},
		{strings.Repeat("x", 300), "", 0, "not a host name"},
	}
	for _, tt := range tests {
		host, port, err := hostport.Split(tt.endpoint, 29400)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "PW") {
				t.Errorf("Split(%q): error %v, want one with %q", tt.endpoint, err, tt.err)
			}
			continue
		}
		if err != nil || host != tt.host || port != tt.port {
			t.Errorf("Split(%q) = %q, %d, %v, want %q, %d", tt.endpoint, host, port, err, tt.host, tt.port)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, seed := range []string{"", "a:1", "[::1]:2", "::", "a:b:c", "[", "]:", "[]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		host, port, err := hostport.Split(text, 29400)
		if err == nil && (host == "" || port < 0 || port > 65535) {
			t.Errorf("Split(%q) = %q, %d without an error", text, host, port)
		}
	})
}

func TestIsThisHost(t *testing.T) {
	for _, host := range []string{"localhost", "127.0.0.1", "127.1.2.3", "::1"} {
		if !hostport.IsThisHost(t.Context(), host) {
			t.Errorf("IsThisHost(%q) = false", host)
		}
	}
	// TEST-NET-1 is nobody's address.
	if hostport.IsThisHost(t.Context(), "192.0.2.1") {
		t.Error("IsThisHost(192.0.2.1) = true")
	}
}
