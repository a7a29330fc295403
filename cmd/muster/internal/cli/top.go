package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/tui"
	"github.com/muster-run/muster/health"
)

const topUsage = `usage: muster top [JOB | ADDR]... [--once] [--json]

Shows a live job: its hosts, the workers of all hosts with what they use and last said,
timers, failures and what has happened. Where agents cannot ask each other, since PyTorch
holds the rendezvous, name several: it shows their workers together.

  JOB     a job of this user on this host: its run ID, or the pid of its agent (muster
          run), as muster ps shows them; without JOB and ADDR the one job of this user
  ADDR    an agent's --health-addr: host:port, unix:/path, or a port of this host; several
          are separated by blanks or commas
  --once  print the state once; the default where stdout is no terminal
  --json  print the state once as JSON, those of several agents as a list

Keys: q quits, up and down choose a worker and show its last lines, e shows its stderr,
r sorts by another column.
`

// topInterval is how often the agent is asked.
const topInterval = time.Second

// A topRequest is what `muster top` was asked for.
type topRequest struct {
	targets    []string
	once, json bool
}

// topCommand is `muster top`. It runs until a key, or the end of ctx, ends it.
func topCommand(ctx context.Context, c *command, args []string) error {
	req := parseTop(c, args)
	if err := c.refused(); err != nil {
		return err
	}
	source, first, err := req.find(ctx)
	if err != nil {
		return err
	}
	stdout, _ := c.stdout.(*os.File)
	view := &topView{asked: source.jobs[0].name(), selected: -1}
	view.take(first)
	switch {
	case req.json && len(source.jobs) > 1:
		return writeJSON(stdout, first.states)
	case req.json:
		return writeJSON(stdout, first.states[0])
	case req.once || !tui.IsTerminal(c.stdin) || !tui.IsTerminal(stdout):
		return snapshot(stdout, view)
	}
	return view.live(ctx, source, c.stdin, stdout)
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
				c.wrong("%s is no address; want a job or an address, or several with commas between them", quote(arg))
			}
			if !slices.Contains(req.targets, target) {
				req.targets = append(req.targets, target)
			}
		}
	}
	return req
}

// find returns the agents that are meant, and their first answers.
func (req *topRequest) find(ctx context.Context) (*topSource, answers, error) {
	source := &topSource{}
	targets := req.targets
	if targets == nil {
		targets = []string{""} // the one job of this user
	}
	var wrong, missing []error
	for _, target := range targets {
		jobs := []job{{addr: target}}
		_, _, err := health.ParseAddr(target)
		if !strings.Contains(target, ":") {
			found, noJob := theJob(ctx, target, false)
			if noJob != nil && err == nil { // a port
				missing = append(missing, noJob)
			} else {
				jobs, err = found, noJob
			}
		}
		wrong = append(wrong, err)
		source.jobs = append(source.jobs, jobs...)
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, answers{}, err
	}
	first := source.ask(ctx)
	if first.err != nil {
		first.err = errors.Join(append(missing, first.err)...)
	}
	return source, first, first.err
}

// snapshot prints a view once.
func snapshot(w *os.File, view *topView) error {
	width := 100
	if tui.IsTerminal(w) {
		width, _ = tui.Size(w)
	} else if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n >= 20 && n <= 1000 {
		width = n
	}
	var b strings.Builder
	for _, line := range view.body(width, 1<<20) {
		b.WriteString(strings.TrimRight(line.Fit(width).String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// live shows the view until a key or ctx ends it. The terminal is given back in any
// case.
func (v *topView) live(ctx context.Context, source *topSource, in, out *os.File) error {
	terminal, err := tui.Open(in, out)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var fetching sync.WaitGroup
	defer fetching.Wait()
	defer cancel()
	defer terminal.Close()
	ticker := time.NewTicker(topInterval)
	defer ticker.Stop()
	got := make(chan answers, 1)
	busy := false
	for {
		if err := terminal.Draw(v.render(terminal.Size())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return terminal.Close()
		case <-ticker.C:
			if !busy {
				busy = true
				fetching.Go(func() { got <- source.ask(ctx) })
			}
		case a := <-got:
			busy = false
			v.take(a)
		case <-terminal.Resized():
		case key, ok := <-terminal.Keys():
			switch {
			case !ok || !v.key(key):
				return terminal.Close()
			case key == tui.KeySuspend:
				if err := terminal.Suspend(); err != nil {
					return err
				}
			case key == tui.KeyRedraw:
				terminal.Redraw()
			}
		}
	}
}
