//go:build linux

package logs_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/logs"
)

// Where stdout and stderr are the same, a worker's writes come out in turn, and
// a begun line of one is continued by the other.
func TestStreamsStayInTurn(t *testing.T) {
	const turns = 500
	want := new(strings.Builder)
	for i := range turns {
		fmt.Fprintf(want, "\r%d/%d done %d\n", i, turns, i)
	}
	for _, tt := range []struct {
		name string
		open func(*testing.T) (agent *os.File, read func() string)
	}{
		{"file", func(t *testing.T) (*os.File, func() string) {
			f := tempFile(t, "console")
			return f, func() string { return content(t, f) }
		}},
		{"pipe", func(t *testing.T) (*os.File, func() string) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close(); w.Close() })
			return w, reading(r, want.Len())
		}},
		{"terminal", func(t *testing.T) (*os.File, func() string) {
			agent, person := openTerminal(t)
			read := reading(person, want.Len()+turns)
			return agent, func() string { return strings.ReplaceAll(read(), "\r\n", "\n") }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			console, read := tt.open(t)
			j := newJob(t, logs.Config{Stdout: console, Stderr: console})
			a, w := j.begin(1)
			for i := range turns {
				fmt.Fprintf(w[0].err, "\r%d/%d", i, turns)
				fmt.Fprintf(w[0].out, " done %d\n", i)
			}
			w[0].close()
			finish(t, a)
			if got := read(); got != want.String() {
				t.Errorf("the console holds %.200q, want %.200q", got, want)
			}
			if !a.Sink(0).Joined() {
				t.Error("the sink is not joined")
			}
			if got := string(a.StderrTail(0)); got != want.String() {
				t.Errorf("StderrTail is %.200q", got)
			}
		})
	}
}

// reading reads n bytes from r, to begin with at once.
func reading(r io.Reader, n int) (read func() string) {
	got := make(chan string, 1)
	go func() {
		text := make([]byte, n)
		n, _ := io.ReadFull(bufio.NewReader(r), text)
		got <- string(text[:n])
	}()
	return func() string { return <-got }
}

// Streams that go to different places, or to a file, do not share a way.
func TestStreamsApart(t *testing.T) {
	console := tempFile(t, "console")
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, tt := range []struct {
		name           string
		stdout, stderr *os.File
		cfg            logs.Config
	}{
		{"two files", tempFile(t, "out"), tempFile(t, "err"), logs.Config{}},
		{"nowhere", null, null, logs.Config{}},
		{"stdout has a file", console, console, logs.Config{Redirects: parse(t, "1")}},
		{"stderr has a file", console, console, logs.Config{Tee: parse(t, "2")}},
		{"filtered out", console, console, logs.Config{LocalRanksFilter: []int{1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Stdout, tt.cfg.Stderr, tt.cfg.Dir = tt.stdout, tt.stderr, filepath.Join(t.TempDir(), "logs")
			a, w := newJob(t, tt.cfg).begin(1)
			fmt.Fprint(w[0].out, "out\n")
			fmt.Fprint(w[0].err, "err\n")
			w[0].close()
			finish(t, a)
			if a.Sink(0).Joined() {
				t.Error("the sink is joined")
			}
			if got := string(a.StderrTail(0)); got != "err\n" {
				t.Errorf("StderrTail is %q", got)
			}
		})
	}
}
