package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
)

// Bounds of the commands of Records.OnEvent.
const (
	onEventTimeout = 30 * time.Second // of one command
	onEventWaiting = 32               // events whose commands have not begun
	onEventAtEnd   = 30 * time.Second // how long the end of the job waits for all of them
)

// An eventDocument is what a command of Records.OnEvent reads; docs/formats.md has its fields.
type eventDocument struct {
	Version     int       `json:"version"`
	Event       string    `json:"event"`
	Time        time.Time `json:"time"`
	RunID       string    `json:"run_id"`
	Host        string    `json:"host"`
	GroupRank   int       `json:"group_rank"` // -1: not known
	Round       int       `json:"round"`      // -1: there was none
	Restarts    int       `json:"restarts"`
	MaxRestarts int       `json:"max_restarts"`
	Cause       string    `json:"cause,omitempty"`
	Outcome     string    `json:"outcome,omitempty"` // of the end, as jobfile.End has it
	RootRank    *int      `json:"root_rank,omitempty"`
	RootHost    string    `json:"root_host,omitempty"`
	LostHost    string    `json:"lost_host,omitempty"`
	LogDir      string    `json:"log_dir,omitempty"`
	Report      string    `json:"report,omitempty"`
}

// root says whose failure it is about.
func (d *eventDocument) root(f *failure.ProcessFailure) {
	if f == nil {
		return
	}
	d.Cause, d.RootHost = f.Error(), f.Host
	if f.Rank >= 0 {
		d.RootRank = &f.Rank
	}
}

// An eventCommand runs Records.OnEvent, one at a time, each as a group of the workers'
// Supervisor: what a command leaves behind ends with it, and with this program. end is for the
// goroutine of Run, and so is Observe, except for a hang, of which others may tell.
type eventCommand struct {
	command    string
	env        []string
	supervisor *process.Supervisor
	log        *slog.Logger

	queue   chan eventDocument // closed by end
	lost    atomic.Int64       // events whose command has not run to its end for lack of time or room
	cancel  context.CancelFunc
	done    chan struct{} // closed when no command runs any more
	atEnd   time.Duration // onEventAtEnd; tests have less
	timeout time.Duration // onEventTimeout

	last *failure.ProcessFailure // the last that was explained; only the goroutine of Run touches it
}

// begin begins to run commands. The caller calls end.
func (c *eventCommand) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	c.queue, c.done, c.cancel = make(chan eventDocument, onEventWaiting), make(chan struct{}), cancel
	go func() {
		defer close(c.done)
		for d := range c.queue {
			if ctx.Err() == nil {
				c.run(ctx, d)
			} else {
				c.lost.Add(1)
			}
		}
	}()
}

// end waits for the commands, until hurry at most, and kills what is left.
func (c *eventCommand) end(hurry <-chan struct{}) {
	close(c.queue)
	select {
	case <-c.done:
	case <-time.After(c.atEnd):
	case <-hurry:
	}
	c.cancel()
	<-c.done
	if n := c.lost.Load(); n > 0 {
		c.log.Warn("commands of Records.OnEvent did not run or did not finish: too many events were waiting, or the job has ended",
			"events", n)
	}
}

// Observe has the command run for an event of the agent, if it is of interest.
func (c *eventCommand) Observe(e agent.Event) {
	d := eventDocument{
		Version: 1, Time: e.Time, RunID: e.Job.RunID, Host: e.Job.Host, GroupRank: -1, Round: -1,
		Restarts: e.Restarts, MaxRestarts: e.Job.MaxRestarts, LogDir: e.Job.LogDir,
	}
	if e.Round != nil {
		d.GroupRank, d.Round = e.Round.Rank, e.Round.Round
	}
	switch w := e.What.(type) {
	case agent.WorkersStarted:
		if w.Err == nil {
			d.Event = "start"
		}
	case agent.Suspected:
		d.Event, d.Cause = "hang", w.What+": "+w.Why
	case agent.FailureExplained:
		if c.last = w.Report.Root(); c.last != nil {
			d.Event, d.Report = "failure", w.File
			d.root(c.last)
		}
	case agent.AttemptFailed:
		if w.Worker == nil {
			d.Event, d.LostHost, d.Cause = "host lost", w.Host, "host lost: "+cmp.Or(w.Host, "the one that held the rendezvous")
		}
	case agent.RestartCounted:
		d.Event, d.Report = "restart", w.File
		d.root(c.last)
		d.Cause = cmp.Or(w.Why, d.Cause)
	case agent.Finished:
		d.Event = "end"
		if w.Result != nil && w.Result.Report != nil {
			d.Report = w.Result.ReportFile
			d.root(w.Result.Report.Root())
		}
		if d.Outcome, d.Cause = w.Outcome(); d.Outcome == jobfile.Succeeded && w.Result.Left {
			d.Outcome = jobfile.Left
		}
	}
	if d.Event == "" {
		return
	}
	select {
	case c.queue <- d:
	default:
		c.lost.Add(1)
	}
}

// run runs the command for one event, and logs how it fails.
func (c *eventCommand) run(ctx context.Context, d eventDocument) {
	limited, cancel := context.WithTimeoutCause(ctx, c.timeout,
		fmt.Errorf("it ran longer than %v and was killed", c.timeout))
	defer cancel()
	out, err := c.try(limited, d)
	switch {
	case err == nil:
		return
	case ctx.Err() != nil:
		c.lost.Add(1)
		return
	case limited.Err() != nil:
		err = context.Cause(limited)
	}
	c.log.Warn("the command of Records.OnEvent failed; the job continues", "event", d.Event, "error", err,
		"last_lines", lastLines(out))
}

// try runs the command until the context ends, and returns the end of what it wrote.
func (c *eventCommand) try(ctx context.Context, d eventDocument) ([]byte, error) {
	document, _ := json.Marshal(d) // texts, numbers and a time of this job
	stdin, toStdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer toStdin.Close()
	fromOut, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close())
	}
	defer fromOut.Close()
	group, err := c.supervisor.Start(process.Config{
		Entrypoint: "/bin/sh", Args: map[int][]string{0: {"-c", c.command}},
		Env: c.env, Envs: map[int]map[string]string{0: nil}, Stdin: stdin, Logs: commandOutput{out},
		Leftovers: process.Leftovers{LeftoverGrace: process.NoGrace}, Logger: slog.New(slog.DiscardHandler),
	})
	if err = errors.Join(err, stdin.Close(), out.Close()); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, group.Kill)()
	go func() { // it ends with the command, or with toStdin
		_, _ = toStdin.Write(append(document, '\n'))
		toStdin.Close()
	}()
	tail, read := children.Tail{Limit: maxHealthTail}, make(chan struct{})
	go func() {
		_, _ = io.Copy(&tail, fromOut)
		close(read)
	}()
	result, err := group.Wait(context.WithoutCancel(ctx))
	_ = fromOut.SetReadDeadline(time.Now().Add(time.Second)) // a process that even SIGKILL does not end may hold it
	<-read
	if err == nil && result.IsFailed() {
		err = errors.New(failure.New(result.Exits[0].Observation()).Cause)
	}
	return tail.Bytes(), err
}

// commandOutput is where a command's stdout and stderr go.
type commandOutput struct{ to *os.File }

func (o commandOutput) Sink(localRank int) logs.Sink {
	if localRank > 0 {
		return logs.Sink{}
	}
	return logs.Sink{Stdout: o.to, Stderr: o.to}
}

func (commandOutput) Started() error { return nil }
