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
	"sync"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/tui"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/text"
)

const topUsage = `usage: muster top [ADDR | unix:/path | PID]... [--all] [--once] [--json]

Shows a live job: its hosts, the workers of one host with what they use and last said,
timers, failures and what has happened. The job's agent must serve its health: start it
with muster run --health-addr PORT. Of several agents it shows the workers together.

  ADDR    the agent's --health-addr: a port of this host, host:port, or unix:/path;
          several are separated by blanks or commas
  PID     an agent on this host, by its process
          without either, the one agent of this user on this host that serves health
  --all   also the other hosts of the round, by their names and at the same port; there
          the agents must listen for others: --health-addr 0.0.0.0:PORT
  --once  print the state once; the default where stdout is no terminal
  --json  print the state once as JSON, those of several agents as a list

Keys: q quits, up and down choose a worker and show its last lines, e shows its stderr,
r sorts by another column.
`

// topInterval is how often the agent is asked.
const topInterval = time.Second

// A topRequest is what `muster top` was asked for.
type topRequest struct {
	targets         []string
	all, once, json bool
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
	view := &topView{addr: source.addrs[0], selected: -1}
	view.take(first)
	switch {
	case req.json && source.many():
		return writeJSON(stdout, first.states)
	case req.json:
		return writeJSON(stdout, first.states[0])
	case req.once || !tui.IsTerminal(c.stdin) || !tui.IsTerminal(stdout):
		return snapshot(stdout, view)
	}
	return view.live(ctx, source, c.stdin, stdout)
}

func parseTop(c *command, args []string) (req topRequest) {
	c.BoolVar(&req.all, "all", false, "")
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
				c.wrong("%s: want an address or a pid, or several with commas between them", quote(arg))
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
	source := &topSource{all: req.all}
	if len(req.targets) > 1 {
		for _, target := range req.targets {
			if pid, err := strconv.Atoi(target); err == nil {
				if agent, ok := agentOf(pid); ok && len(agent.addrs) > 0 {
					target = agent.addrs[0]
				}
			}
			source.addrs = append(source.addrs, target)
		}
		first := source.ask(ctx)
		return source, first, first.err
	}
	addr, state, err := req.findOne(ctx)
	if err != nil {
		return nil, answers{}, err
	}
	if source.addrs = []string{addr}; !req.all {
		return source, answers{states: []*health.State{state}}, nil
	}
	if _, err := source.port(); err != nil {
		return nil, answers{}, err
	}
	first := source.ask(ctx)
	return source, first, first.err
}

// findOne returns the agent that is meant where at most one is named, and its first
// answer.
func (req *topRequest) findOne(ctx context.Context) (addr string, state *health.State, err error) {
	if len(req.targets) == 0 {
		return onlyAgent(ctx)
	}
	target := req.targets[0]
	if pid, err := strconv.Atoi(target); err == nil {
		if agent, ok := agentOf(pid); ok {
			if len(agent.addrs) == 0 {
				return "", nil, fmt.Errorf("the agent with pid %d does not serve its job's health; start it with --health-addr", pid)
			}
			return agent.ask(ctx)
		}
	}
	state, err = fetchState(ctx, target)
	if _, number := strconv.Atoi(target); err != nil && number == nil {
		err = fmt.Errorf("%w; give another address or pid: no agent of this user has pid %s, so it is taken for a port", err, target)
	}
	return target, state, err
}

// ask returns the first of an agent's addresses that answers.
func (a *foundAgent) ask(ctx context.Context) (addr string, state *health.State, err error) {
	for _, addr = range a.addrs {
		if state, err = fetchState(ctx, addr); err == nil {
			return addr, state, nil
		}
	}
	return addr, nil, err
}

// onlyAgent finds the agent where none is named.
func onlyAgent(ctx context.Context) (addr string, state *health.State, err error) {
	agents, silent, err := findAgents()
	if err != nil {
		return "", nil, err
	}
	var list strings.Builder
	answering := 0
	var failure error
	for _, a := range agents {
		at, s, err := a.ask(ctx)
		if err != nil {
			failure = err
			continue
		}
		if answering++; answering == 1 {
			addr, state = at, s
		}
		fmt.Fprintf(&list, "\n  muster top %-8d # %s, %s, at %s", a.pid, text.Line(s.Job.Entrypoint+" of run "+s.Job.RunID, 100), text.Line(string(s.Job.Phase), 40), at)
	}
	switch {
	case answering == 1:
		return addr, state, nil
	case answering > 1:
		return "", nil, fmt.Errorf("%d agents of this user serve their jobs' health; choose one:%s", answering, list.String())
	case failure != nil:
		return "", nil, failure
	case silent > 0:
		return "", nil, fmt.Errorf("%s of this user on this host, but none serves its job's health; start the job with --health-addr PORT", text.Count(silent, "agent"))
	}
	return "", nil, errors.New("no agent of this user runs on this host; name the address of another host's: muster top HOST:PORT")
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
