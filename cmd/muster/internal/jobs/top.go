package jobs

import (
	"context"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/health"
)

// topInterval is how often the agents are asked.
const topInterval = time.Second

// Top is `muster top`.
func Top(ctx context.Context, c *command.Command, args []string) error {
	once, asJSON := c.Bool("once", false, ""), c.Bool("json", false, "")
	meant := c.AtMost(1, args)[0]
	if err := c.Refused(); err != nil {
		return err
	}
	j, err := topJob(ctx, meant)
	if err != nil {
		return err
	}
	if j.fetch(ctx, false); j.state == nil {
		return j.err
	}
	stdout, _ := c.Stdout.Writer.(*os.File)
	view := &topView{}
	view.take(j.state)
	switch {
	case *asJSON:
		return writeJSON(stdout, j.state)
	case *once || !console.IsTerminal(stdout):
		text := strings.Join(view.lines(math.MaxInt), "\n") + "\n"
		if console.IsTerminal(stdout) {
			text = cutLines + text + wrapLines
		}
		_, err := io.WriteString(stdout, text)
		return err
	}
	return view.live(ctx, j, stdout)
}

// topJob returns an agent of the job that is meant, which speaks for all hosts.
func topJob(ctx context.Context, meant string) (*job, error) {
	if strings.Contains(meant, ":") {
		_, _, err := health.ParseAddr(meant)
		return &job{addr: meant}, err
	}
	jobs, err := theJob(ctx, meant, meant == "")
	if err == nil && several(jobs) {
		err = chooseOne(jobs, meant)
	}
	if err != nil {
		return nil, err
	}
	return &jobs[0], nil
}

// The terminal cuts lines at its edge between cutLines and wrapLines.
// Source: DECAWM of DEC's VT100.
const cutLines, wrapLines = "\x1b[?7l", "\x1b[?7h"

// live shows the view on a terminal, again each second, until ctx ends. Where the agent does not answer, the
// state before stays.
func (v *topView) live(ctx context.Context, j *job, w *os.File) error {
	tick := time.Tick(topInterval)
	for clear := "\x1b[2J"; ; clear = "" {
		height := 24
		if size, err := unix.IoctlGetWinsize(int(w.Fd()), unix.TIOCGWINSZ); err == nil && size.Row > 0 {
			height = int(size.Row)
		}
		// Source: ECMA-48, 8.3.57 CUP, 8.3.39 ED and 8.3.41 EL.
		screen := strings.Join(v.lines(height-1), "\x1b[K\n")
		if _, err := io.WriteString(w, cutLines+clear+"\x1b[H"+screen+"\x1b[K\n\x1b[J"+wrapLines); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
		switch j.fetch(ctx, false); {
		case ctx.Err() != nil:
		case j.state != nil:
			v.take(j.state)
		default:
			v.problems = []string{j.err.Error()}
		}
	}
}
