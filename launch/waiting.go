package launch

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/wait/steady"
	"github.com/muster-run/muster/rendezvous"
)

// A waitingLine shows how far the rendezvous is: on a terminal one line that is
// written over, elsewhere a line each time. A console that takes nothing does not hold
// up the rendezvous.
type waitingLine struct {
	out      *steady.Writer
	terminal bool
	columns  int // of the terminal

	mu    sync.Mutex // guards the rest
	shown int        // length of what is on the terminal, from the line's begin to the cursor
	said  string     // the line before; "" if it was none
	began time.Time  // when the wait did
	at    time.Time  // when said was written
	again time.Time  // when the same line is written again
	gap   time.Duration
}

// waitingGap is the first time between two equal lines; the next is twice as long, and so on up to
// longestGap: a spare waits for days. Where only the time has changed a line comes each timeGap, after
// waitingGap.
const (
	waitingGap = time.Minute
	longestGap = time.Hour
	timeGap    = 30 * time.Second
)

func newWaitingLine(out io.Writer) *waitingLine {
	l := &waitingLine{out: &steady.Writer{W: out}}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			l.terminal, l.columns = true, cmp.Or(int(size.Col), 80)
		}
	}
	return l
}

// show shows w; an empty one clears the line, because the wait is over.
func (l *waitingLine) show(w rendezvous.Waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := ""
	if w.MaxNodes > 0 || w.Note != "" {
		text = "muster: waiting for hosts: " + w.String()
	}
	now := time.Now()
	if l.said == "" {
		l.began = now
	} else if !l.terminal && now.Sub(l.began) >= waitingGap && now.Sub(l.at) < timeGap && timeless(text) == timeless(l.said) {
		return
	}
	if text != l.said {
		l.said, l.gap, l.again = text, waitingGap, now.Add(waitingGap)
	} else if !l.terminal && now.Before(l.again) {
		return
	} else {
		l.gap = min(2*l.gap, longestGap)
		l.again = now.Add(l.gap)
	}
	l.at = now
	switch {
	case !l.terminal && text != "":
		fmt.Fprintln(l.out, text)
	case l.terminal && text != "":
		rest := max(l.shown-len(text), 0)
		fmt.Fprint(l.out, l.back(), text, strings.Repeat(" ", rest))
		l.shown = len(text) + rest
	case l.terminal && l.shown > 0:
		fmt.Fprint(l.out, l.back(), strings.Repeat(" ", l.shown), l.back())
		l.shown = 0
	}
}

// back moves the cursor to the line's begin, from the row of the terminal to which the line has come.
func (l *waitingLine) back() string {
	if rows := (l.shown - 1) / l.columns; rows > 0 {
		return fmt.Sprintf("\r\x1b[%dA", rows)
	}
	return "\r"
}

// timeless is a line without how long, and how often, was waited.
func timeless(text string) string {
	for _, mark := range []string{", tried ", "; last call ends in ", "; giving up in "} {
		text, _, _ = strings.Cut(text, mark)
	}
	return text
}
