package agent_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// A log at the level ERROR has a job that failed for good, and no job that was told to stop.
func TestFailureIsAnError(t *testing.T) {
	var log bytes.Buffer
	j := newJob(t, "fail until", "9", 2)
	j.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
	if r := j.mustRun(t); !r.IsFailed() {
		t.Errorf("%+v", r)
	}
	if got := log.String(); !strings.Contains(got, agent.JobFailed) || !strings.Contains(got, "attempt 0 fails") {
		t.Errorf("the log has %q", got)
	}
	log.Reset()
	prefix := fifos(t, 1)
	j = newJob(t, "wait", prefix, 1)
	j.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		started(t, prefix, 1)
		cancel(&process.SignalError{Signal: syscall.SIGTERM})
	}()
	if r, err := j.run(t, ctx); err == nil || !r.IsFailed() || log.Len() > 0 {
		t.Errorf("told to stop: %+v, %v; the log has %q", r, err, log.String())
	}
}

// The log says that a rendezvous is complete, and whether an agent's store is the workers'.
func TestRendezvousIsLogged(t *testing.T) {
	for _, own := range []bool{true, false} {
		var log bytes.Buffer
		j := newJob(t, "rank", "", 2)
		j.Rendezvous = hosted{j.Rendezvous, own}
		j.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if r := j.mustRun(t); r.IsFailed() {
			t.Errorf("%+v", r)
		}
		line := regexp.MustCompile(`level=INFO msg="rendezvous complete" run_id=job1 role=default round=0 node=0 nodes=1 world_size=2 ` +
			`master_addr=127.0.0.1 master_port=\d+ agent_store=` + strconv.FormatBool(own) + ` restart=0\n`)
		if n := len(line.FindAllString(log.String(), -1)); n != 1 {
			t.Errorf("%d lines %v in\n%s", n, line, log.String())
		}
	}
}

// A hosted rendezvous says that an agent hosts the store, or that none does.
type hosted struct {
	rendezvous.Handler
	own bool
}

func (h hosted) UseAgentStore() bool { return h.own }
