package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/harmless"
	"github.com/muster-run/muster/internal/tui"
)

const topUsage = `usage: muster top [ADDR | unix:/path | PID] [--once] [--json]

Shows a live job: its hosts, the workers of one host with what they use and last said,
timers, failures and what has happened. The job's agent must serve its health: start it
with muster run --health-addr PORT.

  ADDR    the agent's --health-addr: a port of this host, host:port, or unix:/path
  PID     an agent on this host, by its process
          without either, the agent of this user on this host that serves
  --once  print the state once; so it is done, too, where stdout is no terminal
  --json  print the state once as JSON

Keys: q quits, up and down choose a worker and show its last lines, e shows its stderr,
r sorts by another column.
`

// topInterval is how often the agent is asked.
const topInterval = time.Second

// A topRequest is what `muster top` was asked for.
type topRequest struct {
	target     string
	once, json bool
}

// TopCommand is `muster top`. It runs until a key, or the end of ctx, ends it.
func TopCommand(ctx context.Context, args []string, stdin, stdout *os.File, stderr io.Writer) int {
	c := command{"top", topUsage, stdout, stderr}
	req, err := parseTop(args)
	if err != nil {
		return c.refuse(err)
	}
	addr, state, err := req.find(ctx)
	if err != nil {
		return c.fail(exitError, err)
	}
	view := &topView{addr: addr, state: state, selected: -1}
	switch {
	case req.json:
		err = writeJSON(stdout, state)
	case req.once || !tui.IsTerminal(stdin) || !tui.IsTerminal(stdout):
		err = snapshot(stdout, view)
	default:
		err = view.live(ctx, stdin, stdout)
	}
	if err != nil {
		return c.fail(exitError, err)
	}
	return exitOK
}

func parseTop(args []string) (req topRequest, err error) {
	flags := flag.NewFlagSet("muster top", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error is reported by the caller
	flags.BoolVar(&req.once, "once", false, "")
	flags.BoolVar(&req.json, "json", false, "")
	rest, err := arguments(flags, args)
	if err != nil {
		return req, err
	}
	if len(rest) > 1 {
		return req, fmt.Errorf("unexpected argument %s; want one address or pid", quote(rest[1]))
	}
	if len(rest) == 1 {
		req.target = rest[0]
	}
	return req, nil
}

// find returns the agent that is meant, and its first answer.
func (req *topRequest) find(ctx context.Context) (addr string, state *health.State, err error) {
	if req.target == "" {
		return onlyAgent(ctx)
	}
	if pid, err := strconv.Atoi(req.target); err == nil {
		if agent, ok := agentOf(pid); ok {
			if len(agent.addrs) == 0 {
				return "", nil, fmt.Errorf("the agent with pid %d does not serve its job's health; start it with --health-addr", pid)
			}
			return agent.ask(ctx)
		}
	}
	state, err = fetchState(ctx, req.target)
	if _, number := strconv.Atoi(req.target); err != nil && number == nil {
		err = fmt.Errorf("%w; %s is taken for a port, since no agent of this user has that pid", err, req.target)
	}
	return req.target, state, err
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
		fmt.Fprintf(&list, "\n  muster top %-8d # %s, %s, at %s", a.pid, harmless.Line(s.Job.RunID, 100), harmless.Line(string(s.Job.Phase), 40), at)
	}
	switch {
	case answering == 1:
		return addr, state, nil
	case answering > 1:
		return "", nil, fmt.Errorf("%d agents of this user serve their jobs' health; choose one:%s", answering, list.String())
	case failure != nil:
		return "", nil, failure
	case silent > 0:
		return "", nil, fmt.Errorf("%s of this user on this host, but none serves its job's health; start the job with --health-addr PORT", countOf(silent, "agent"))
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

// An answer is what an agent said, or why it did not.
type answer struct {
	state *health.State
	err   error
}

// live shows the view until a key or ctx ends it. The terminal is given back in any
// case.
func (v *topView) live(ctx context.Context, in, out *os.File) error {
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
	answers := make(chan answer, 1)
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
				fetching.Go(func() {
					s, err := fetchState(ctx, v.addr)
					answers <- answer{s, err}
				})
			}
		case a := <-answers:
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

// take takes in an answer. Where there is none, the state before stays.
func (v *topView) take(a answer) {
	if a.err != nil {
		v.problem = a.err.Error()
		return
	}
	v.state, v.problem = a.state, ""
}
