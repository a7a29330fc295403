package cli

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A stuckWriter takes nothing until gate is closed.
type stuckWriter struct {
	gate chan struct{}
	got  strings.Builder
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.gate
	return w.got.Write(p)
}

func TestSteadyWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{gate: make(chan struct{})}
		s := &steadyWriter{w: w}
		write := func(text string, want time.Duration) {
			t.Helper()
			began := time.Now()
			if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("Write = %d, %v", n, err)
			}
			if got := time.Since(began); got != want {
				t.Errorf("Write took %v, want %v", got, want)
			}
		}
		write("one\n", steadyPatience)
		write("two\n", 0)
		if s.flush(time.Minute) {
			t.Error("flush says that all is written")
		}
		write(strings.Repeat("x", steadyRoom), 0)
		write("three\n", 0)
		close(w.gate)
		if !s.flush(0) {
			t.Error("flush says that not all is written")
		}
		want := "one\ntwo\nthree\nmuster: 1 messages are missing here: nothing could be written for a while\n"
		if got := w.got.String(); got != want {
			t.Errorf("written %.200q, want %q", got, want)
		}
		write("four\n", 0)
		if got := w.got.String(); got != want+"four\n" {
			t.Errorf("written %q after the stop", got)
		}
	})
}
