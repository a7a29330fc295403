package steady

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

func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{gate: make(chan struct{})}
		s := &Writer{W: w}
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
		write("one\n", patience)
		write("two\n", 0)
		if s.Flush(time.Minute) {
			t.Error("Flush says that all is written")
		}
		write(strings.Repeat("x", capacity), 0)
		write("three\n", 0)
		close(w.gate)
		if !s.Flush(0) {
			t.Error("Flush says that not all is written")
		}
		want := "one\ntwo\nthree\nmuster: messages missing here: 1; nothing could be written for a while\n"
		if got := w.got.String(); got != want {
			t.Errorf("written %.200q, want %q", got, want)
		}
		write("four\n", 0)
		if got := w.got.String(); got != want+"four\n" {
			t.Errorf("written %q after the stop", got)
		}
	})
}
