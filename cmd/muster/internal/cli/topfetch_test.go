package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health"
)

func TestReadReply(t *testing.T) {
	tests := []struct{ name, in, body, wrong string }{
		{"whole", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "{}", ""},
		{"no length", "HTTP/1.0 200 OK\n\n{}", "{}", ""},
		{"cut", "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n{}", "", "ends after 2 of 5 bytes"},
		{"busy", "HTTP/1.0 503 Service Unavailable\r\n\r\nnot\x1b[2J yet\n", "", "it answers 503: not yet"},
		{"no HTTP", "SSH-2.0-OpenSSH\r\n", "", "does not speak HTTP"},
		{"nothing", "", "", "ends in its head"},
		{"half a head", "HTTP/1.0 200 OK\r\nA: b\r\n", "", "ends in its head"},
		{"endless head", "HTTP/1.0 200 OK\r\nA: " + strings.Repeat("b", 9<<10), "", "more than 8 KiB"},
		{"huge", "HTTP/1.0 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "", "length of '99999999999' bytes"},
		{"negative", "HTTP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n", "", "length of '-1' bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body, err := readReply(strings.NewReader(tt.in))
			if string(body) != tt.body || (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%q, %v; want %q, %q", body, err, tt.body, tt.wrong)
			}
		})
	}
}

func FuzzReadReply(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.0 503 x\n\nno", "HTTP/1.0 200", "\n\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		body, err := readReply(strings.NewReader(s))
		if err == nil && (!strings.HasPrefix(s, "HTTP/1.") || !strings.HasSuffix(s, string(body))) {
			t.Errorf("body %q of %q", body, s)
		}
	})
}

// reply serves one answer and returns the address.
func reply(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Read(make([]byte, 4096))
		io.WriteString(conn, text)
		conn.Close()
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func TestFetchState(t *testing.T) {
	ok := func(body string) string {
		return fmt.Sprintf("HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	state, err := fetchState(context.Background(), reply(t, ok(`{"version":1,"job":{"run_id":"j"},"hosts":null,"new":[]}`)))
	if want := (&health.State{Version: 1, Job: health.Job{RunID: "j"}}); err != nil || !cmp.Equal(state, want) {
		t.Errorf("%v, %v", state, err)
	}
	for body, want := range map[string]string{
		"<html>":                   "is no state of a job",
		`{"workers":[{"pid":""}]}`: "is no state of a job",
		`{"version":7}`:            "is a newer muster (state version 7",
	} {
		if _, err := fetchState(context.Background(), reply(t, ok(body))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(io.ErrNoProgress)
	if _, err := fetchState(ctx, reply(t, "")); err == nil || !strings.Contains(err.Error(), io.ErrNoProgress.Error()) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := fetchState(context.Background(), "70000"); err == nil || !strings.Contains(err.Error(), "more than 65535") {
		t.Errorf("a bad port: %v", err)
	}
}

func TestHealthAddr(t *testing.T) {
	tests := []struct {
		args, env string
		want      string
	}{
		{"train.py", "", ""},
		{"--health-addr 9000 train.py", "", "9000"},
		{"--health_addr=unix:s train.py --health-addr 7", "MUSTER_HEALTH_ADDR=1", "unix:s"},
		{"--nnodes x train.py", "MUSTER_HEALTH_ADDR=1", "1"},
		{"train.py", "A=b TORCHELASTIC_HEALTH_CHECK_PORT=5", "5"},
		{"--bogus", "", ""},
	}
	for _, tt := range tests {
		if got := healthAddr(strings.Fields(tt.args), strings.Fields(tt.env)); got != tt.want {
			t.Errorf("%q with %q: %q, want %q", tt.args, tt.env, got, tt.want)
		}
	}
	if got := absoluteAddr("unix:s", "/job"); got != "unix:/job/s" {
		t.Errorf("relative to /job: %s", got)
	}
	for line, want := range map[string]bool{
		"muster run x": true, "/usr/bin/muster run": true, "bin/torchrun x": true,
		"muster top": false, "python3 /venv/bin/torchrun x": false, "muster": false, "": false,
	} {
		if _, got := agentArgs(strings.Split(line, " ")); got != want {
			t.Errorf("%q is an agent: %v", line, got)
		}
	}
}
