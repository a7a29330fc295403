package tui

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sequences that begin and end the use of the whole screen: the other screen, no
// cursor, no line breaks of the terminal's own.
// Source: ctlseqs of xterm, "DEC Private Mode Set".
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
	leaveScreen = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// IsTerminal says whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	return err == nil
}

// A Terminal is a screen that the program has for itself. Its methods are for one
// goroutine; the channels may be read by it too.
type Terminal struct {
	in, out *os.File
	colour  bool
	saved   unix.Termios
	raw     bool

	keys    chan Key
	resized chan os.Signal
	wake    *os.File // its end ends the reader
	wakeIn  *os.File
	stop    chan struct{}
	reader  sync.WaitGroup

	drawn []string // what is on the screen; nil: not known
	width int
}

// Open takes a terminal over: in gives its keys and out shows lines, both the same
// terminal. Where NO_COLOR is set, or TERM is dumb, there are no colours. The
// caller must Close it; the files stay the caller's.
func Open(in, out *os.File) (*Terminal, error) {
	t := &Terminal{
		in: in, out: out, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		keys: make(chan Key, 16), resized: make(chan os.Signal, 1), stop: make(chan struct{}),
	}
	var err error
	if t.wakeIn, t.wake, err = os.Pipe(); err != nil {
		return nil, err
	}
	if err := t.enter(); err != nil {
		_ = t.leave()
		t.wake.Close()
		t.wakeIn.Close()
		return nil, err
	}
	signal.Notify(t.resized, syscall.SIGWINCH)
	t.reader.Go(t.read)
	return t, nil
}

// enter makes the terminal raw and clears the screen.
func (t *Terminal) enter() error {
	saved, err := unix.IoctlGetTermios(int(t.in.Fd()), getTermios)
	if err != nil {
		return fmt.Errorf("take over the terminal: %w", err)
	}
	raw := *saved
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(t.in.Fd()), setTermios, &raw); err != nil {
		return fmt.Errorf("take over the terminal: %w", err)
	}
	t.saved, t.raw, t.drawn = *saved, true, nil
	_, err = t.out.WriteString(enterScreen)
	return err
}

// leave gives the terminal back.
func (t *Terminal) leave() error {
	if !t.raw {
		return nil
	}
	t.raw = false
	_, err := t.out.WriteString(leaveScreen)
	return errors.Join(err, unix.IoctlSetTermios(int(t.in.Fd()), setTermios, &t.saved))
}

// Close gives the terminal back as it was and ends what Open has started. Later
// calls do nothing.
func (t *Terminal) Close() error {
	if t.wake == nil {
		return nil
	}
	err := t.leave()
	signal.Stop(t.resized)
	close(t.stop)
	t.wake.Close()
	t.reader.Wait()
	t.wakeIn.Close()
	t.wake = nil
	return err
}

// Suspend gives the terminal back and stops the process, as Ctrl-Z does. It
// returns once the process goes on, with the screen taken over again and empty.
func (t *Terminal) Suspend() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	err := t.leave()
	if stopErr := syscall.Kill(os.Getpid(), syscall.SIGSTOP); stopErr == nil {
		<-goesOn
	}
	return errors.Join(err, t.enter())
}

// Keys has the keys that are pressed. It is closed once the terminal is gone.
func (t *Terminal) Keys() <-chan Key { return t.keys }

// Resized has a value after the terminal's size has changed.
func (t *Terminal) Resized() <-chan os.Signal { return t.resized }

// Size is how many columns and lines there are; 80 and 24 where nobody knows.
func (t *Terminal) Size() (width, height int) { return Size(t.out) }

// Size is how many columns and lines a terminal has; 80 and 24 where nobody knows.
func Size(f *os.File) (width, height int) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}

// Redraw makes the next Draw draw all lines.
func (t *Terminal) Redraw() { t.drawn = nil }

// Draw shows lines, those that have changed. What does not fit is cut.
func (t *Terminal) Draw(lines []Line) error {
	width, height := t.Size()
	var b strings.Builder
	if t.drawn == nil || t.width != width || len(t.drawn) != height {
		b.WriteString("\x1b[0m\x1b[2J")
		t.drawn, t.width = make([]string, height), width
	}
	for i := range t.drawn {
		var line strings.Builder
		if i < len(lines) {
			lines[i].Fit(width).render(&line, t.colour)
		}
		text := line.String()
		if text == t.drawn[i] {
			continue
		}
		t.drawn[i] = text
		fmt.Fprintf(&b, "\x1b[%d;1H\x1b[K%s", i+1, text)
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := t.out.WriteString(b.String())
	return err
}

// read hands on keys until the terminal is closed or gone.
func (t *Terminal) read() {
	defer close(t.keys)
	buf := make([]byte, 256)
	have := 0
	for {
		fds := []unix.PollFd{{Fd: int32(t.in.Fd()), Events: unix.POLLIN}, {Fd: int32(t.wakeIn.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil || fds[1].Revents != 0 {
			return
		}
		n, err := unix.Read(int(t.in.Fd()), buf[have:])
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		keys, rest := Decode(buf[:have+n])
		have = copy(buf, rest)
		for _, key := range keys {
			select {
			case t.keys <- key:
			case <-t.stop:
				return
			}
		}
	}
}
