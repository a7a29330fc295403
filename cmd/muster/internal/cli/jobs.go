package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/http10"
	"github.com/muster-run/muster/internal/sleep"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/internal/unixsock"
)

const psUsage = `usage: muster ps [--json]

Lists the jobs of this user that run on this host, whoever has started them and however.

  --json  print one JSON document instead
`

const jobUsage = `
  JOB        a job's run ID, or the pid of its agent (muster run), as muster ps shows them;
             without it the one job of this user on this host
`

const stopUsage = `usage: muster stop [JOB] [--all] [--no-wait]

Stops this host's part of a job, as SIGTERM to its agent does: the workers get SIGTERM, time
to end, then SIGKILL. It returns when they have ended.
` + jobUsage + `  --all      all jobs of this user on this host
  --no-wait  return at once
`

const restartUsage = `usage: muster restart [JOB]

Stops the workers of a job on all its hosts and starts new ones, in a new round, as when a
host joins. It counts no restart of --max-restarts.
` + jobUsage

const signalUsage = `usage: muster signal SIGNAL [JOB] [--rank N]

Sends a signal to a job's workers on this host, not to their child processes, and prints
which workers got it.

  SIGNAL     its name, such as USR1 or SIGUSR1, or its number` + jobUsage + `  --rank N   only to the worker of this global rank
`

// A job is one agent of this user on this host.
type job struct {
	unixsock.Agent
	state *health.State
	err   error // why there is no state
}

// name is the job's for people.
func (j *job) name() string {
	if j.state == nil {
		return fmt.Sprintf("the job of the agent with pid %d", j.PID)
	}
	return fmt.Sprintf("job %s (pid %d)", quote(j.state.Job.RunID), j.PID)
}

// ask sends a request to the job's agent.
func (j *job) ask(ctx context.Context, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	conn, err := unixsock.DialAgent(ctx, j.Path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	body, err := http10.Ask(ctx, conn, method, path, maxState)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer within %v", fetchTimeout)
	}
	return body, err
}

// findJobs returns the jobs of this user on this host, with their states.
func findJobs(ctx context.Context) ([]job, error) {
	agents, err := unixsock.Agents(ctx)
	jobs := make([]job, len(agents))
	var asking sync.WaitGroup
	for i := range agents {
		j := &jobs[i]
		j.Agent = agents[i]
		asking.Go(func() {
			body, err := j.ask(ctx, "GET", "/v1/state")
			state := new(health.State)
			if err == nil {
				err = json.Unmarshal(body, state)
			}
			if j.err = err; err == nil {
				j.state = state
			}
		})
	}
	asking.Wait()
	return jobs, err
}

// chooseJobs returns the agents of the job that is meant: several if several agents of one job
// run on this host.
func chooseJobs(jobs []job, meant string) ([]job, error) {
	var chosen []job
	for _, j := range jobs {
		if meant == "" || strconv.Itoa(j.PID) == meant || j.state != nil && j.state.Job.RunID == meant {
			chosen = append(chosen, j)
		}
	}
	switch {
	case len(jobs) == 0:
		return nil, errors.New("no job of this user runs on this host")
	case len(chosen) == 0:
		return nil, fmt.Errorf("no job of this user on this host has the run ID or pid %s; `muster ps` lists the jobs", quote(meant))
	case len(chosen) > 1 && meant == "":
		list := fmt.Sprintf("%d jobs of this user run on this host; name one:", len(jobs))
		for _, j := range chosen {
			list += "\n  " + j.name()
		}
		return nil, errors.New(list)
	}
	return chosen, nil
}

// atMost parses options and at most n arguments, which it returns, "" where they are missing.
func (c *command) atMost(n int, args []string) []string {
	rest, ok := c.arguments(args)
	if ok && len(rest) > n {
		c.wrong("unexpected argument %s", quote(rest[n]))
	}
	return append(rest, make([]string, n)...)
}

// A psJob is a job as `muster ps --json` prints it.
type psJob struct {
	PID int `json:"pid"`
	*health.Job
	Host    *health.Host `json:"host,omitempty"`
	Workers []int        `json:"ranks,omitempty"` // global ranks on this host
	Problem string       `json:"problem,omitempty"`
}

func psCommand(ctx context.Context, c *command, args []string) error {
	asJSON := c.Bool("json", false, "")
	c.options(args)
	if err := c.refused(); err != nil {
		return err
	}
	jobs, err := findJobs(ctx)
	if *asJSON {
		list := []psJob{}
		for _, j := range jobs {
			p := psJob{PID: j.PID}
			if j.state != nil {
				p.Job, p.Host = &j.state.Job, &j.state.Host
				for _, w := range j.state.Workers {
					p.Workers = append(p.Workers, w.Rank)
				}
			} else {
				p.Problem = j.err.Error()
			}
			list = append(list, p)
		}
		return errors.Join(err, writeJSON(c.stdout, map[string]any{"version": 1, "jobs": list}))
	}
	if len(jobs) == 0 {
		if err == nil {
			io.WriteString(c.stdout, "No job of this user runs on this host.\n")
		}
		return err
	}
	rows := [][]string{{"RUN ID", "PID", "RANKS", "STATE", "RESTARTS", "UP", "SCRIPT"}}
	for _, j := range jobs {
		row := []string{"-", strconv.Itoa(j.PID), "-", "no answer", "-", "-", "-"}
		if s := j.state; s != nil {
			var ranks []int
			for _, w := range s.Workers {
				ranks = append(ranks, w.Rank)
			}
			row = []string{text.Line(s.Job.RunID, 80), row[1], cmp.Or(text.Ranges(ranks, ","), "-"), text.Line(string(s.Job.Phase), 40),
				fmt.Sprintf("%d/%d", s.Job.Restarts, s.Job.MaxRestarts), max(0, time.Since(s.Job.Started)).Round(time.Second).String(), text.Line(s.Job.Entrypoint, 80)}
		}
		rows = append(rows, row)
	}
	return errors.Join(err, writeColumns(c.stdout, "", 40, rows))
}

// stopPause is the time between two looks whether an agent has ended.
const stopPause = 100 * time.Millisecond

func stopCommand(ctx context.Context, c *command, args []string) error {
	all, noWait := c.Bool("all", false, ""), c.Bool("no-wait", false, "")
	meant := c.atMost(1, args)[0]
	if *all && meant != "" {
		c.wrong("--all and a job exclude each other")
	}
	return c.each(ctx, meant, *all, "/v1/stop", func(j *job, _ []byte) error {
		fmt.Fprintf(c.stdout, "stopping %s\n", j.name())
		return nil
	}, func(j *job) error {
		for !*noWait {
			conn, err := unixsock.DialAgent(ctx, j.Path)
			if err != nil {
				fmt.Fprintf(c.stdout, "%s has stopped\n", j.name())
				return nil
			}
			conn.Close()
			if err := sleep.For(ctx, stopPause); err != nil {
				return err
			}
		}
		return nil
	})
}

func restartCommand(ctx context.Context, c *command, args []string) error {
	return c.each(ctx, c.atMost(1, args)[0], false, "/v1/restart", func(j *job, _ []byte) error {
		fmt.Fprintf(c.stdout, "restarting the workers of %s\n", j.name())
		return nil
	}, nil)
}

func signalCommand(ctx context.Context, c *command, args []string) error {
	rank := -1
	c.number("rank", &rank, 0, 1<<30)
	given := c.atMost(2, args)
	sig := text.ParseSignal(given[0])
	switch {
	case given[0] == "":
		c.wrong("no signal; name one first, such as USR1")
	case sig <= 0:
		c.wrong("%s: want a signal's name or number, such as USR1", quote(given[0]))
	}
	path := "/v1/signal?signal=" + strconv.Itoa(int(sig))
	if rank >= 0 {
		path += "&rank=" + url.QueryEscape(strconv.Itoa(rank))
	}
	return c.each(ctx, given[1], false, path, func(j *job, body []byte) error {
		var sent struct{ Workers []health.Signaled }
		err := json.Unmarshal(body, &sent)
		var to []string
		for _, w := range sent.Workers {
			to = append(to, fmt.Sprintf("rank %d (pid %d)", w.Rank, w.PID))
		}
		fmt.Fprintf(c.stdout, "sent %s to %s\n", text.SignalName(syscall.Signal(sig)), strings.Join(to, ", "))
		return err
	}, nil)
}

// each asks the agents of the job that is meant, or all of them, and then waits for each.
func (c *command) each(ctx context.Context, meant string, all bool, path string, done func(*job, []byte) error, wait func(*job) error) error {
	if err := c.refused(); err != nil {
		return err
	}
	jobs, err := findJobs(ctx)
	if !all || len(jobs) == 0 {
		chosen, missing := chooseJobs(jobs, meant)
		if missing != nil {
			return errors.Join(err, missing)
		}
		jobs = chosen
	}
	var errs []error
	for i := range jobs {
		body, err := jobs[i].ask(ctx, "POST", path)
		if err == nil {
			err = done(&jobs[i], body)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", jobs[i].name(), err))
			jobs[i].err = err
		}
	}
	for i := range jobs {
		if wait != nil && jobs[i].err == nil {
			errs = append(errs, wait(&jobs[i]))
		}
	}
	return errors.Join(errs...)
}
