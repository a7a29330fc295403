package timer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

func TestFromEnv(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	for _, tt := range []struct{ name, socket, file, want string }{
		{"nothing", "", "", "timer.nowhere"},
		{"a FIFO", "", fifo, "*timer.FileClient"},
		{"both", "/nowhere", fifo, "*timer.SocketClient"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(timer.EnvSocket, tt.socket)
			t.Setenv(timer.EnvFile, tt.file)
			c := timer.FromEnv()
			if got := cmp.Diff(tt.want, fmt.Sprintf("%T", c)); got != "" {
				t.Error(got)
			}
			if tt.want == "timer.nowhere" {
				if err := errors.Join(c.Acquire("a", time.Now()), c.Release("a")); err != nil {
					t.Error("a client that does nothing fails:", err)
				}
			}
		})
	}
}

// Close stands in for Run.
func TestServerClose(t *testing.T) {
	s, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Run(context.Background()); err == nil {
		t.Error("Run after Close")
	}
}

// encoding/json has what goes over the wire.
func TestMarshalRequest(t *testing.T) {
	r := timer.Request{PID: 7, ScopeID: "a", ExpirationTime: time.Unix(1, 5e8), Signal: 9}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := timer.ParseRequest(text)
	if err != nil || again != r {
		t.Errorf("%s is read as %v, %v", text, again, err)
	}
}
