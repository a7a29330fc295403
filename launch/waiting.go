package launch

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/steady"
	"github.com/muster-run/muster/rendezvous"
)

// A waitingLine shows how far the rendezvous is: on a terminal one line that is
// written over, elsewhere a line each time. A console that takes nothing does not hold
// up the rendezvous.
type waitingLine struct {
	out      *steady.Writer
	terminal bool

	mu    sync.Mutex // guards the rest
	shown int        // length of what is on the terminal's line
}

func newWaitingLine(out io.Writer) *waitingLine {
	l := &waitingLine{out: &steady.Writer{W: out}}
	if f, ok := out.(*os.File); ok {
		_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		l.terminal = err == nil
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
	switch {
	case !l.terminal && text != "":
		fmt.Fprintln(l.out, text)
	case l.terminal && text != "":
		fmt.Fprintf(l.out, "\r%s%s", text, strings.Repeat(" ", max(l.shown-len(text), 0)))
		l.shown = len(text)
	case l.terminal && l.shown > 0:
		fmt.Fprintf(l.out, "\r%s\r", strings.Repeat(" ", l.shown))
		l.shown = 0
	}
}
