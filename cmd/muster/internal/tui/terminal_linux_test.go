package tui_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/tui"
)

// openPTY makes a terminal: the end for a program, and the end where a person sits.
func openPTY(t *testing.T, width, height uint16) (program, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close(); person.Close() })
	return program, person
}

func settings(t *testing.T, f *os.File) *unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// until reads what the program has sent up to text.
func until(t *testing.T, f *os.File, text string) string {
	t.Helper()
	var got strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(got.String(), text) {
		n, err := f.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got.String())
		}
		got.Write(buf[:n])
	}
	return got.String()
}

func open(t *testing.T, program *os.File) *tui.Terminal {
	t.Helper()
	terminal, err := tui.Open(program, program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return terminal
}

func TestTerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	program, person := openPTY(t, 20, 3)
	before := settings(t, program)
	terminal := open(t, program)
	if got := settings(t, program); got.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != 0 {
		t.Errorf("the terminal echoes or makes lines: %#x", got.Lflag)
	}
	if w, h := terminal.Size(); w != 20 || h != 3 {
		t.Errorf("%dx%d, want 20x3", w, h)
	}
	until(t, person, "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J")

	lines := []tui.Line{{{Text: "one"}}, {{Text: "two", Style: tui.Red}}, {{Text: strings.Repeat("x", 30)}}, {{Text: "below"}}}
	if err := terminal.Draw(lines); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[0m\x1b[2J\x1b[1;1H\x1b[Kone\x1b[2;1H\x1b[K\x1b[1;31mtwo\x1b[0m\x1b[3;1H\x1b[K" + strings.Repeat("x", 19) + "…"
	if got := until(t, person, "…"); got != want {
		t.Errorf("drew %q, want %q", got, want)
	}

	// Only what has changed is drawn.
	lines[0] = tui.Line{{Text: "ONE"}}
	if err := terminal.Draw(lines); err != nil {
		t.Fatal(err)
	}
	if got := until(t, person, "ONE"); got != "\x1b[1;1H\x1b[KONE" {
		t.Errorf("drew %q", got)
	}

	// Keys come one by one, also those that are cut in two.
	io.WriteString(person, "q\x1b[Bé")
	for _, want := range []tui.Key{'q', tui.KeyDown, 'é'} {
		if got := <-terminal.Keys(); got != want {
			t.Errorf("key %d, want %d", got, want)
		}
	}

	// The person makes the window larger.
	if err := unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 30}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // it is not our controlling terminal
		t.Fatal(err)
	}
	<-terminal.Resized()
	if err := terminal.Draw(lines); err != nil {
		t.Fatal(err)
	}
	if got := until(t, person, "below"); !strings.HasPrefix(got, "\x1b[0m\x1b[2J") {
		t.Errorf("a new size draws %q", got)
	}

	for range 2 {
		if err := terminal.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := until(t, person, "\x1b[?1049l"); got != "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l" {
		t.Errorf("left with %q", got)
	}
	if diff := cmp.Diff(before, settings(t, program)); diff != "" {
		t.Errorf("the terminal's settings (-before +after):\n%s", diff)
	}
	if _, ok := <-terminal.Keys(); ok {
		t.Error("a key after the end")
	}
}

// A panic gives the terminal back on its way.
func TestTerminalPanic(t *testing.T) {
	program, person := openPTY(t, 20, 1)
	before := settings(t, program)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		terminal := open(t, program)
		defer terminal.Close()
		panic("an internal error")
	}()
	until(t, person, "\x1b[?1049l")
	if diff := cmp.Diff(before, settings(t, program)); diff != "" {
		t.Errorf("the terminal's settings (-before +after):\n%s", diff)
	}
}

func TestNoColour(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	program, person := openPTY(t, 20, 1)
	terminal := open(t, program)
	if err := terminal.Draw([]tui.Line{{{Text: "a", Style: tui.Green}, {Text: "b", Style: tui.Red}, {Text: "END", Style: tui.Reverse}}}); err != nil {
		t.Fatal(err)
	}
	got := until(t, person, "END\x1b[0m")
	if !strings.HasSuffix(got, "\x1b[Ka\x1b[1mb\x1b[0m\x1b[7mEND\x1b[0m") {
		t.Errorf("drew %q", got)
	}
}

// A terminal that goes away ends the keys.
func TestTerminalGone(t *testing.T) {
	program, person := openPTY(t, 20, 1)
	terminal := open(t, program)
	person.Close()
	if key, ok := <-terminal.Keys(); ok {
		t.Errorf("key %d", key)
	}
}

func TestNoTerminal(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if tui.IsTerminal(f) {
		t.Error("/dev/null is a terminal")
	}
	if _, err := tui.Open(f, f); err == nil || !strings.Contains(err.Error(), "take over the terminal") {
		t.Errorf("error %v", err)
	}
	if w, h := tui.Size(f); w != 80 || h != 24 {
		t.Errorf("%dx%d, want 80x24", w, h)
	}
}

// A terminal that cannot be drawn on is given back as it was.
func TestTerminalCannotBeDrawnOn(t *testing.T) {
	program, _ := openPTY(t, 20, 3)
	before := settings(t, program)
	readOnly, err := os.Open(program.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	if _, err := tui.Open(program, readOnly); err == nil {
		t.Error("it was opened")
	}
	if d := cmp.Diff(before, settings(t, program)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
}
