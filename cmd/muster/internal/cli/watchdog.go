package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/wait/steady"
	"github.com/muster-run/muster/timer"
)

// watchdogCommand is `muster watchdog`. It serves until ctx is done.
func watchdogCommand(ctx context.Context, c *command.Command, args []string) error {
	path, runID := os.Getenv(timer.EnvFile), ""
	c.Text("file", &path)
	c.Text("run-id", &runID)
	interval := 10 * time.Second
	c.Value("max-interval", "seconds, or a time such as 10m, more than 0", func(text string) error {
		return command.ParseSeconds(text, &interval, math.MaxInt64/1e9)
	})
	killSelf := c.Bool("kill-self", false, "")
	events := c.Bool("events", false, "")
	c.AtMost(0, args)
	if path == "" {
		c.Wrong("there is no FIFO to serve; name its path with --file")
	}
	out := &steady.Writer{W: c.Stderr} // for log and events
	logger := c.Logger(out)
	if err := c.Refused(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := watchdog{runID: runID}
	if *events {
		w.out = out
	}
	if *killSelf {
		w.stop = stop
	}
	self := os.Getpid()
	server, err := timer.NewServer(timer.Config{
		RunID:       runID,
		MaxInterval: interval,
		Owns:        func(pid int) bool { return pid != self },
		OnExpiry:    w.expired,
		Logger:      logger,
	})
	if err != nil {
		return err
	}
	defer server.Close()
	fifo, err := timer.ListenFIFO(server, path)
	if err != nil {
		return err
	}
	console.Outlive()
	fmt.Fprintf(c.Stdout, "listening on %s\n", path)
	if err = w.serve(ctx, server, fifo); err != nil {
		return err
	}
	if w.signal != 0 {
		return command.StatusError{Status: endBy(w.signal)}
	}
	return nil
}

// A watchdog deals with the events of a server, one at a time.
type watchdog struct {
	runID  string
	out    io.Writer          // nil: nobody wants them
	stop   context.CancelFunc // called once a process was killed; may be nil
	signal syscall.Signal     // what it was killed with, when stop was called
}

// serve serves until ctx is done. The server ends after the FIFO, which has something to log
// until then.
func (w *watchdog) serve(ctx context.Context, server *timer.Server, fifo *timer.FileServer) error {
	running, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	w.event("watchdog started", nil)
	go func() { served <- server.Run(running) }()
	err := fifo.Serve(ctx)
	end()
	err = errors.Join(err, <-served)
	w.event("watchdog stopped", nil)
	return err
}

// expired tells of a timer, and notes the first kill.
func (w *watchdog) expired(r timer.Request, killed bool) {
	if !killed {
		w.event("timer expired", &r)
		return
	}
	w.event("kill worker process", &r)
	if w.stop != nil && w.signal == 0 {
		w.signal = r.Signal
		w.stop()
	}
}

// event writes a line with the keys of TorchElastic's metadata.
// Source: _log_watchdog_event in local_elastic_agent.py.
func (w *watchdog) event(name string, r *timer.Request) {
	if w.out != nil {
		at := float64(time.Now().UnixMicro()) / 1e6
		line := pyjson.Dict(
			pyjson.Member{Key: "timestamp", Value: pyjson.Float(at)},
			pyjson.Member{Key: "run_id", Value: pyjson.Str(w.runID)},
			pyjson.Member{Key: "watchdog_event", Value: pyjson.Str(name)},
		)
		if r != nil {
			line.Set("worker_pid", pyjson.Str(strconv.Itoa(r.PID)))
			line.Set("scope_id", pyjson.Str(r.ScopeID))
			line.Set("expiration_time", pyjson.Str(pyjson.Float(r.Seconds()).String()))
			line.Set("signal", pyjson.Str(strconv.Itoa(int(r.Signal))))
		}
		_, _ = w.out.Write(append(line.Append(nil), '\n'))
	}
}

// endBy ends this process by a signal. If the signal does not do that, the status
// is what a shell makes of one.
func endBy(sig syscall.Signal) int {
	signal.Reset(sig)
	_ = syscall.Kill(os.Getpid(), sig)
	if sig != syscall.SIGCHLD && sig != syscall.SIGURG && sig != syscall.SIGWINCH && sig != syscall.SIGCONT {
		time.Sleep(time.Second) // it is on its way
	}
	return 128 + int(sig)
}
