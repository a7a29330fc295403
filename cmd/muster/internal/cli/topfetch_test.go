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
		"{}":                       "is no state of a job: it has no version",
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
