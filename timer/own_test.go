package timer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

// held is a client that notes what is acquired and released.
type held struct {
	live []string
	fail error
}

func (s *held) Acquire(scope string, _ time.Time) error {
	if slices.Contains(s.live, scope) {
		return errors.New(scope + " runs")
	}
	s.live = append(s.live, scope)
	return s.fail
}

func (s *held) Release(scope string) error {
	if s.fail == nil {
		s.live = slices.DeleteFunc(s.live, func(live string) bool { return live == scope })
	}
	return s.fail
}

// wrapped is a wrapper, as programs have: all its callers have its line.
func wrapped(t *testing.T, c timer.Client) (release func()) {
	t.Helper()
	f, err := timer.Expires(c, time.Minute, "")
	if err != nil {
		t.Error(err)
	}
	return func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
}

// Timers that begin on one line do not end each other.
func TestScopesOfOneLine(t *testing.T) {
	c := &held{}
	_, file, _, _ := runtime.Caller(0)
	names := func() (names []string) {
		for _, scope := range c.live {
			_, after, _ := strings.Cut(strings.TrimPrefix(scope, file+"#"), "~")
			names = append(names, after)
		}
		return names
	}
	one, two, three := wrapped(t, c), wrapped(t, c), wrapped(t, c)
	if d := cmp.Diff([]string{"", "2", "3"}, names()); d != "" {
		t.Fatal(d)
	}
	two()
	two() // nobody else's
	four := wrapped(t, c)
	two()
	if d := cmp.Diff([]string{"", "3", "2"}, names()); d != "" {
		t.Fatal(d)
	}
	one()
	three()
	four()
	wrapped(t, c)()
	if len(c.live) > 0 {
		t.Error("still live:", c.live)
	}
	// What could not be acquired is free again; what could not be released is not.
	c.fail = errors.New("no server")
	if _, err := timer.Expires(c, time.Minute, ""); err == nil {
		t.Error("acquired")
	}
}

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
			c, err := timer.FromEnv()
			if runtime.GOOS != "linux" && tt.socket != "" {
				t.Skip("needs Linux")
			}
			if got := cmp.Diff(tt.want, fmt.Sprintf("%T", c)); err != nil || got != "" {
				t.Error(got, err)
			}
			if tt.want == "timer.nowhere" {
				if release, err := timer.Expires(c, time.Minute, ""); err != nil || release() != nil {
					t.Error("a client that does nothing fails:", err)
				}
			}
		})
	}
}

// Close ends Run, or stands in for it.
func TestServerClose(t *testing.T) {
	for _, run := range []bool{true, false} {
		started := make(chan struct{}, 2)
		s, err := timer.NewServer(timer.Config{OnEvent: func(string, *timer.Request) { started <- struct{}{} }})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		if run {
			go func() { ended <- s.Run(context.Background()) }()
			<-started
		}
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if run {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		} else if err := s.Run(context.Background()); err == nil {
			t.Error("Run after Close")
		}
	}
}

// encoding/json has what goes over the wire.
func TestMarshalRequest(t *testing.T) {
	r := timer.Request{PID: 7, ScopeID: "a", ExpirationTime: 1.5, Signal: 9}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := timer.ParseRequest(text)
	if err != nil || again != r {
		t.Errorf("%s is read as %v, %v", text, again, err)
	}
}
