package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/health"
)

const topUsage = `usage: muster top [JOB | ADDR]... [--once] [--json]

Shows a live job: its hosts, the workers of all hosts with what they use and last said,
timers, failures and what has happened. On a terminal it shows them again each second, until
Ctrl-C. Where agents cannot ask each other, since PyTorch holds the rendezvous, name several:
it shows their workers together.

  JOB     a job of this user on this host: its run ID, or the pid of its agent (muster
          run), as muster ps shows them; without JOB and ADDR the one job of this user
  ADDR    an agent's --health-addr: host:port, unix:/path, or a port of this host; several
          are separated by blanks or commas
  --once  print the state once; the default where stdout is not a terminal
  --json  print the state once as JSON, those of several agents as a list
`

// topInterval is how often the agent is asked.
const topInterval = time.Second

// A topRequest is what `muster top` was asked for.
type topRequest struct {
	targets    []string
	once, json bool
}

// topCommand is `muster top`.
func topCommand(ctx context.Context, c *command, args []string) error {
	req := parseTop(c, args)
	if err := c.refused(); err != nil {
		return err
	}
	jobs, first := req.find(ctx)
	if first.err != nil {
		return first.err
	}
	stdout, _ := c.stdout.(*os.File)
	view := &topView{}
	view.take(first)
	switch {
	case req.json && len(jobs) > 1:
		return writeJSON(stdout, first.states)
	case req.json:
		return writeJSON(stdout, first.states[0])
	case req.once || !isTerminal(stdout):
		return view.print(stdout)
	}
	return view.live(ctx, jobs, stdout)
}

func parseTop(c *command, args []string) (req topRequest) {
	c.BoolVar(&req.once, "once", false, "")
	c.BoolVar(&req.json, "json", false, "")
	rest, _ := c.arguments(args)
	for _, arg := range rest {
		targets := []string{arg}
		if !strings.HasPrefix(arg, "unix:") { // whose path may have commas
			targets = strings.Split(arg, ",")
		}
		for _, target := range targets {
			if target == "" {
				c.wrong("%s is not an address; want a job or an address, or several with commas between them", quote(arg))
			}
			if !slices.Contains(req.targets, target) {
				req.targets = append(req.targets, target)
			}
		}
	}
	return req
}

// find returns the agents that are meant, and their first answers.
func (req *topRequest) find(ctx context.Context) (jobs []job, first answers) {
	targets := req.targets
	if targets == nil {
		targets = []string{""} // the one job of this user
	}
	var wrong, missing []error
	for _, target := range targets {
		at := []job{{addr: target}}
		_, _, err := health.ParseAddr(target)
		if !strings.Contains(target, ":") {
			found, noJob := theJob(ctx, target, false)
			if noJob != nil && err == nil { // a port
				missing = append(missing, noJob)
			} else {
				at, err = found, noJob
			}
		}
		wrong = append(wrong, err)
		jobs = append(jobs, at...)
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, answers{err: err}
	}
	first = askTop(ctx, jobs)
	if first.err != nil {
		first.err = errors.Join(append(missing, first.err)...)
	}
	return jobs, first
}

// answers are what the agents have said.
type answers struct {
	states   []*health.State // in the order in which they were named
	problems []string        // why others are missing
	err      error           // why there is no state at all
}

// askTop asks agents. The first one that answers speaks for the job.
func askTop(ctx context.Context, jobs []job) (a answers) {
	jobs = slices.Clone(jobs)
	askAll(ctx, jobs, false)
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.state == nil:
			a.problems = append(a.problems, j.err.Error())
		case len(a.states) > 0 && j.runID() != a.states[0].Job.RunID:
			a.problems = append(a.problems, fmt.Sprintf("%s is of another job, %s", j.name(), j.runID()))
		default:
			a.states = append(a.states, j.state)
		}
	}
	if len(a.states) == 0 {
		return answers{err: errors.New(strings.Join(a.problems, "\n"))}
	}
	return a
}

// print prints the view once.
func (v *topView) print(w *os.File) error {
	width := 100
	if size, err := unix.IoctlGetWinsize(int(w.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		width = int(size.Col)
	} else if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n >= 20 && n <= 1000 {
		width = n
	}
	_, err := io.WriteString(w, strings.Join(v.lines(width, 1<<20), "\n")+"\n")
	return err
}

// live shows the view on a terminal, again each second, until ctx ends.
func (v *topView) live(ctx context.Context, jobs []job, w *os.File) error {
	ticker := time.NewTicker(topInterval)
	defer ticker.Stop()
	for clear := "\x1b[2J"; ; clear = "" {
		width, height := 80, 24
		if size, err := unix.IoctlGetWinsize(int(w.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
			width, height = int(size.Col), int(size.Row)
		}
		// Source: ECMA-48, 8.3.57 CUP, 8.3.39 ED and 8.3.41 EL.
		screen := strings.Join(v.lines(width, height-1), "\x1b[K\n")
		if _, err := io.WriteString(w, clear+"\x1b[H"+screen+"\x1b[K\n\x1b[J"); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if a := askTop(ctx, jobs); ctx.Err() == nil {
			v.take(a)
		}
	}
}
