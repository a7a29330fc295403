package logs_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/logs"
)

func byRanks(ranks string, stderr bool) string {
	if stderr {
		ranks += " err"
	}
	return "[" + ranks + "]: "
}

// Lines are whole, and are printed byte for byte.
func TestPrinter(t *testing.T) {
	var out strings.Builder
	p := logs.NewPrinter(&out, logs.PrinterConfig{Prefix: byRanks})
	for _, put := range []struct {
		rank    int
		stderr  bool
		attempt string
		late    bool
		data    string
	}{
		{0, false, "attempt_0", false, "one\r\na bar\r 10%\r 20%\n\nbegun "},
		{0, false, "attempt_0", false, "here\nand "},
		{1, true, "attempt_0", false, "between\n"},
		{0, false, "attempt_0", false, "there\n"},
		{1, true, "attempt_0", false, "no end"},
		{1, true, "attempt_1", false, "two\n"},
		{0, false, "attempt_0", true, "late\n"},
		{0, false, "attempt_1", false, "no end"},
	} {
		if err := p.Put(put.rank, put.stderr, put.attempt, put.late, []byte(put.data)); err != nil {
			t.Error(err)
		}
	}
	if err := p.End(0, false, "attempt_0"); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	want := "[0]: one\r\n[0]: a bar\r 10%\r 20%\n[0]: \n[0]: begun here\n[0]: and \n[1 err]: between\n[0]: there\n[1 err]: no end\n[1 err]: two\n[0 attempt_0]: late\n[0]: no end\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Equal lines of all ranks are printed once, however many ranks there are and whichever comes
// first; those of stdout and stderr, and of another attempt, are not equal.
func TestPrinterCollapses(t *testing.T) {
	const ranks, lines = 130, 50
	var out strings.Builder
	p := logs.NewPrinter(&out, logs.PrinterConfig{Prefix: byRanks, Collapse: true})
	put := func(rank int, stderr, late bool, format string, args ...any) {
		t.Helper()
		if err := p.Put(rank, stderr, "attempt_0", late, fmt.Appendf(nil, format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "[0-%d]: line %d\n", ranks-1, i)
	}
	for rank := range ranks {
		rank = ranks - 1 - rank
		for i := range lines {
			put(rank, false, false, "line %d\n", i)
		}
	}
	if err := p.Flush(); err != nil || out.String() != want.String() {
		t.Errorf("%v, -want +got:\n%s", err, cmp.Diff(want.String(), out.String()))
	}
	out.Reset()
	put(7, false, false, "same\n")
	put(8, true, false, "same\n")
	put(9, true, true, "same\n")
	put(3, true, false, "same\n")
	put(4, true, false, "same\n")
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("[8 err]: same\n[9 err attempt_0]: same\n[7]: same\n[3-4 err]: same\n", out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Live lines wait for equal ones for 0.1 s, at the beginning for longer.
func TestPrinterLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out guarded
		p := logs.NewPrinter(&out, logs.PrinterConfig{Prefix: byRanks, Collapse: true, Live: true})
		prints := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := out.take(); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		put := func(rank int, text string) {
			t.Helper()
			if err := p.Put(rank, false, "attempt_0", false, []byte(text)); err != nil {
				t.Error(err)
			}
		}
		put(0, "past\n")
		prints(900*time.Millisecond, "")
		put(1, "past\n")
		prints(110*time.Millisecond, "[0-1]: past\n")
		put(0, "now\n")
		put(1, "now\n")
		prints(90*time.Millisecond, "")
		prints(11*time.Millisecond, "[0-1]: now\n")
		put(0, "end\n")
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		prints(time.Second, "[0]: end\n")
	})
}

// guarded is what a timer's goroutine writes.
type guarded struct {
	mu  sync.Mutex
	out []byte
}

func (g *guarded) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out = append(g.out, b...)
	return len(b), nil
}

func (g *guarded) take() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	text := string(g.out)
	g.out = nil
	return text
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestPrinterFails(t *testing.T) {
	broken := errors.New("broken")
	p := logs.NewPrinter(failingWriter{broken}, logs.PrinterConfig{Prefix: byRanks})
	if err := p.Put(0, false, "", false, []byte("a\n")); err != broken {
		t.Error(err)
	}
	if err := p.Close(); err != broken {
		t.Error(err)
	}
}

func TestPrinterWithoutPrefix(t *testing.T) {
	var out strings.Builder
	p := logs.NewPrinter(&out, logs.PrinterConfig{})
	if err := p.Put(0, false, "", false, []byte("hello\n")); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil || out.String() != "hello\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
