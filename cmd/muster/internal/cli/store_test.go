package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/cli"
	"github.com/muster-run/muster/store/tcpstore"
)

func TestStoreServes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string // pattern
	}{
		{[]string{"--port", "0"}, `^listening on (\[::\]|0\.0\.0\.0):([1-9]\d*)\n$`},
		{[]string{"--host", "127.0.0.1", "--port=0"}, `^listening on (127\.0\.0\.1):([1-9]\d*)\n$`},
		{[]string{"--host=localhost", "--port=0"}, `^listening on (localhost):([1-9]\d*)\n$`},
	} {
		ctx, stop := context.WithCancel(t.Context())
		r, w := io.Pipe()
		var stderr bytes.Buffer
		status := make(chan int, 1)
		go func() { status <- cli.StoreCommand(ctx, tt.args, w, &stderr) }()
		line, err := bufio.NewReader(r).ReadString('\n')
		m := regexp.MustCompile(tt.want).FindStringSubmatch(line)
		if err != nil || m == nil {
			t.Fatalf("%q: printed %q, %v, want %s; %s", tt.args, line, err, tt.want, &stderr)
		}
		client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: "127.0.0.1:" + m[2]})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := client.Add(ctx, "n", 1); n != 1 || err != nil {
			t.Errorf("%q: add = %d, %v", tt.args, n, err)
		}
		client.Close()
		stop()
		if got := <-status; got != 0 || stderr.Len() > 0 {
			t.Errorf("%q: status %d: %s", tt.args, got, &stderr)
		}
	}
}

func TestStoreErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	for _, tt := range []struct {
		args   []string
		status int
		want   []string
	}{
		{[]string{"--port", port, "--host", "127.0.0.1"}, 1, []string{port, "address already in use", "another --port"}},
		{[]string{"--port", "0", "--host", "192.0.2.1"}, 1, []string{"192.0.2.1", "address of this host"}},
		{[]string{"--port", "0", "--host", "no host"}, 1, []string{"error: --host 'no host': no such host\nhint: give an address of this host"}},
		{[]string{"--port", "x"}, 2, []string{"hint: give ", `'x'`, "0 to 65535"}},
		{[]string{"--port", "65536", "more"}, 2, []string{"65536", "more"}},
		{[]string{"--allow", "10.0.0.0/33"}, 2, []string{"hint: give ", `'10.0.0.0/33'`, "10.0.0.0/8"}},
		{[]string{"--allow", "10.0.0.0/8,", "--allow=host", "--port=x"}, 2, []string{`--allow cannot be ''`, `'host'`, "0 to 65535"}},
		{[]string{"--host="}, 2, []string{"--host cannot be ''", "hint: give a value, or leave it out"}}, // it would be all addresses
		{[]string{"--ports", "1"}, 2, []string{"--ports", "hint: did you mean --port?"}},
		{[]string{"29500"}, 2, []string{"hint: leave it out", "29500"}},
	} {
		var stdout, stderr strings.Builder
		status := cli.StoreCommand(t.Context(), tt.args, &stdout, &stderr)
		if status != tt.status || stdout.Len() > 0 {
			t.Errorf("%q: status %d, want %d; stdout %s", tt.args, status, tt.status, &stdout)
		}
		for _, part := range tt.want {
			if !strings.Contains(stderr.String(), part) {
				t.Errorf("%q: %q is not in %s", tt.args, part, &stderr)
			}
		}
	}
}

// A store that is to ask for a token does not start open.
func TestStoreMisspeltToken(t *testing.T) {
	t.Setenv("MUSTER_TOKN", strings.Repeat("x", 32))
	var stdout, stderr strings.Builder
	if status := cli.StoreCommand(t.Context(), []string{"--port", "0"}, &stdout, &stderr); status != 2 || !strings.Contains(stderr.String(), "unknown variable MUSTER_TOKN") {
		t.Errorf("status %d, stderr %s", status, &stderr)
	}
}

func TestStoreHelp(t *testing.T) {
	var stdout, stderr strings.Builder
	if status := cli.StoreCommand(t.Context(), []string{"--help"}, &stdout, &stderr); status != 0 || stderr.Len() > 0 ||
		!strings.HasPrefix(stdout.String(), "usage: muster store") {
		t.Errorf("status %d: %s%s", status, &stdout, &stderr)
	}
}

// TestStoreAllow has this host admitted and not.
func TestStoreAllow(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		served bool
	}{
		{[]string{"--allow", "127.0.0.1"}, true},
		{[]string{"--allow", "10.0.0.0/8, 127.0.0.0/8"}, true},
		{[]string{"--allow=10.0.0.0/8", "--allow", "127.0.0.1/32"}, true},
		{[]string{"--allow=10.0.0.0/8", "--allow", "::1,fd00::/8"}, false},
	} {
		ctx, stop := context.WithCancel(t.Context())
		r, w := io.Pipe()
		var stderr bytes.Buffer
		status := make(chan int, 1)
		go func() {
			status <- cli.StoreCommand(ctx, append(tt.args, "--port=0", "--host=127.0.0.1"), w, &stderr)
		}()
		line, err := bufio.NewReader(r).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		addr := strings.TrimPrefix(strings.TrimSpace(line), "listening on ")
		timeout := time.Minute
		if !tt.served {
			timeout = time.Second // for which the client tries again
		}
		client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: addr, Timeout: timeout})
		if err == nil {
			client.Close()
		} else if tt.served || !strings.Contains(err.Error(), "admits this host") {
			t.Error(err)
		}
		stop()
		if got := <-status; got != 0 || strings.Contains(stderr.String(), "not in an allowed network") == tt.served || (err == nil) != tt.served {
			t.Errorf("%q: status %d, served %v: %s", tt.args, got, err == nil, &stderr)
		}
	}
}
