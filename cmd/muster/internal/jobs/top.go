package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
)

// topInterval is how often the agents are asked.
const topInterval = time.Second

// Top is `muster top`.
func Top(ctx context.Context, c *command.Command, args []string) error {
	once, asJSON := c.Bool("once", false, ""), c.Bool("json", false, "")
	rest, _ := c.Arguments(args)
	var targets []string
	for _, arg := range rest {
		some := []string{arg}
		if !strings.HasPrefix(arg, "unix:") { // whose path may have commas
			some = strings.Split(arg, ",")
		}
		if slices.Contains(some, "") {
			c.Wrong("%s is not an address; want a job or an address, or several with commas between them", console.Quote(arg))
		}
		targets = append(targets, some...)
	}
	if rest == nil {
		targets = []string{""} // the one job of this user
	}
	if err := c.Refused(); err != nil {
		return err
	}
	jobs, err := topJobs(ctx, targets)
	if err != nil {
		return err
	}
	states, problems := askTop(ctx, jobs)
	if states == nil {
		return errors.New(strings.Join(problems, "\n"))
	}
	stdout, _ := c.Stdout.Writer.(*os.File)
	view := &topView{}
	view.take(states, problems)
	switch {
	case *asJSON && len(jobs) > 1:
		return writeJSON(stdout, states)
	case *asJSON:
		return writeJSON(stdout, states[0])
	case *once || !console.IsTerminal(stdout):
		text := strings.Join(view.lines(math.MaxInt), "\n") + "\n"
		if console.IsTerminal(stdout) {
			text = cutLines + text + wrapLines
		}
		_, err := io.WriteString(stdout, text)
		return err
	}
	return view.live(ctx, jobs, stdout)
}

// topJobs returns the agents that are meant.
func topJobs(ctx context.Context, targets []string) (jobs []job, err error) {
	var errs []error
	for _, target := range targets {
		at := []job{{addr: target}}
		if strings.Contains(target, ":") {
			_, _, err = health.ParseAddr(target)
		} else {
			if at, err = theJob(ctx, target, target == ""); err == nil && several(at) {
				err = chooseOne(at, target)
			}
		}
		jobs, errs = append(jobs, at...), append(errs, err)
	}
	return jobs, errors.Join(errs...)
}

// askTop asks agents for their states, which it returns in the order of the agents. The first
// one speaks for the job; problems say why others are missing.
func askTop(ctx context.Context, jobs []job) (states []*jobstate.State, problems []string) {
	jobs = slices.Clone(jobs)
	askAll(ctx, jobs, false)
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.state == nil:
			problems = append(problems, j.err.Error())
		case states != nil && j.runID() != states[0].Job.RunID:
			problems = append(problems, fmt.Sprintf("%s is of another job, %s", j.name(), j.runID()))
		default:
			states = append(states, j.state)
		}
	}
	return states, problems
}

// The terminal cuts lines at its edge between cutLines and wrapLines.
// Source: DECAWM of DEC's VT100.
const cutLines, wrapLines = "\x1b[?7l", "\x1b[?7h"

// live shows the view on a terminal, again each second, until ctx ends.
func (v *topView) live(ctx context.Context, jobs []job, w *os.File) error {
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
		if states, problems := askTop(ctx, jobs); ctx.Err() == nil {
			v.take(states, problems)
		}
	}
}
