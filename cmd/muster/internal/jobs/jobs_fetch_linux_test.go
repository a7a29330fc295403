package jobs

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health/jobstate"
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

func TestFetch(t *testing.T) {
	ok := func(body string) string {
		return fmt.Sprintf("HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	fetch := func(ctx context.Context, addr string) (*jobstate.State, error) {
		j := job{addr: addr}
		j.fetch(ctx, false)
		return j.state, j.err
	}
	state, err := fetch(t.Context(), reply(t, ok(`{"version":2,"job":{"run_id":"j"},"hosts":null,"new":[]}`)))
	if want := (&jobstate.State{Version: 2, Job: jobstate.Job{RunID: "j"}}); err != nil || !cmp.Equal(state, want) {
		t.Errorf("%v, %v", state, err)
	}
	for body, want := range map[string]string{
		"<html>":                   "is not a state of a job",
		"{}":                       "is not a state of a job: it has no version",
		`{"workers":[{"pid":""}]}`: "is not a state of a job",
		`{"version":7}`:            "is another release of muster (state version 7",
	} {
		if _, err := fetch(t.Context(), reply(t, ok(body))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(io.ErrNoProgress)
	if _, err := fetch(ctx, reply(t, "")); err == nil || !strings.Contains(err.Error(), io.ErrNoProgress.Error()) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := fetch(t.Context(), "70000"); err == nil || !strings.Contains(err.Error(), "more than 65535") {
		t.Errorf("a bad port: %v", err)
	}
}
