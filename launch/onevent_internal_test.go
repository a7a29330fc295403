package launch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process"
)

// The commands get a job's events in their order, without its secrets, and workers' output is
// none of theirs.
func TestOnEvent(t *testing.T) {
	t.Setenv("MUSTER_TOKEN", "0123456789abcdef0123456789abcdef")
	dir := t.TempDir()
	got := filepath.Join(dir, "got")
	var stdout, stderr, log bytes.Buffer
	cfg := Default()
	cfg.RunID, cfg.MaxRestarts, cfg.Logs.Dir = "job7", 1, dir
	cfg.Workers.Entrypoint, cfg.Workers.Args = "/bin/sh", []string{"-c", "exit 3"}
	cfg.Records.OnEvent = fmt.Sprintf(`cat >>%s; echo to stdout; echo "token=$MUSTER_TOKEN" >>%[1]s`, got)
	cfg.Stdout, cfg.Stderr, cfg.Logger = &stdout, &stderr, slog.New(slog.NewTextHandler(&log, nil))
	result, err := Run(t.Context(), cfg)
	if err != nil || !result.IsFailed() {
		t.Fatal(result, err)
	}
	content, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	var events []string
	for line := range strings.Lines(string(content)) {
		if line == "token=\n" {
			continue
		}
		var d eventDocument
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		if d.Version != 1 || d.RunID != "job7" || d.Host != host || d.MaxRestarts != 1 || !strings.HasPrefix(d.LogDir, dir) || time.Since(d.Time) > time.Minute {
			t.Errorf("got %s", line)
		}
		rank, report := "-", "-"
		if d.RootRank != nil {
			rank = fmt.Sprint(*d.RootRank, " ", d.RootHost == host, " ", strings.HasSuffix(d.Cause, ": exit code 3"))
		}
		if d.Report != "" {
			report = strings.TrimPrefix(d.Report, d.LogDir)
		}
		events = append(events, fmt.Sprintf("%s %d %d %s %s %s", d.Event, d.GroupRank, d.Restarts, d.Outcome, rank, report))
	}
	want := []string{
		"start 0 0  - -",
		"failure 0 0  0 true true /attempt_0/report.json",
		"restart 0 1  0 true true /attempt_0/report.json",
		"start 0 1  - -",
		"failure 0 1  0 true true /attempt_1/report.json",
		"end 0 1 failed 0 true true /attempt_1/report.json",
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("-want +got:\n%s\n%s", diff, content)
	}
	if all := stdout.String() + stderr.String() + log.String(); strings.Contains(all, "to stdout") || strings.Contains(all, "--on-event") {
		t.Errorf("the output has what the commands wrote: %s", all)
	}
}

// commands begins to run a command for events, of which log tells.
func commands(t *testing.T, command string, change func(*eventCommand)) (c *eventCommand, log *bytes.Buffer) {
	t.Helper()
	supervisor, err := process.NewSupervisor(process.SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { supervisor.Close() })
	log = &bytes.Buffer{}
	c = &eventCommand{command: command, supervisor: supervisor, log: slog.New(slog.NewTextHandler(log, nil)), timeout: time.Minute, atEnd: time.Minute}
	change(c)
	c.begin()
	return c, log
}

var ofJob = agent.Event{Job: &agent.Job{RunID: "job7"}, What: agent.WorkersStarted{}}

// What a command does wrong is in the log, and it ends with all that it has started.
func TestOnEventFails(t *testing.T) {
	for _, tt := range []struct {
		name, command string
		timeout       time.Duration
		want          []string
	}{
		{"fails", "echo one; echo two >&2; exit 3", time.Minute, []string{`event=start error="exit code 3" last_lines="one\ntwo"`}},
		{"says much", "seq 1 100000; exit 1", time.Minute, []string{`last_lines="99991\n99992\n`}},
		{"is slow", "echo wait; sleep 1000", 300 * time.Millisecond, []string{`error="it ran longer than 300ms and was killed"`}},
		{"does not read", "exec <&-; true", time.Minute, nil},
		{"is fine", "cat; echo fine", time.Minute, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			left := filepath.Join(t.TempDir(), "left")
			c, log := commands(t, "setsid sleep 1000 & echo $! >"+left+"; "+tt.command, func(c *eventCommand) { c.timeout = tt.timeout })
			c.Observe(ofJob)
			c.end(nil)
			for _, want := range tt.want {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log is %q, want in it %q", log, want)
				}
			}
			if tt.want == nil && log.Len() > 0 {
				t.Errorf("it logs %s", log)
			}
			content, err := os.ReadFile(left)
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
			if err != nil {
				t.Fatal(err)
			}
			if p, err := procfs.Read(pid); err == nil && p.Alive() {
				t.Errorf("what the command has started still runs: %+v", p)
			}
		})
	}
}

// However many events there are, and however slow the command is, nobody waits; what does not
// run is counted.
func TestOnEventBounds(t *testing.T) {
	dir := t.TempDir()
	began := filepath.Join(dir, "began")
	if err := syscall.Mkfifo(began, 0o600); err != nil {
		t.Fatal(err)
	}
	c, log := commands(t, "echo x >"+began+"; exec sleep 1000", func(c *eventCommand) { c.atEnd = time.Millisecond })
	c.Observe(ofJob)
	if _, err := os.ReadFile(began); err != nil { // the first runs
		t.Fatal(err)
	}
	for range onEventWaiting + 10 {
		c.Observe(ofJob)
	}
	if n := c.lost.Load(); n != 10 {
		t.Errorf("%d are dropped at once, want 10", n)
	}
	c.end(nil)
	if want := fmt.Sprintf("events=%d\n", 1+onEventWaiting+10); !strings.HasSuffix(log.String(), want) || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("the log is %q, want one line with %q", log, want)
	}

	hurry := make(chan struct{})
	close(hurry)
	c, log = commands(t, "exec sleep 1000", func(*eventCommand) {})
	c.Observe(ofJob)
	c.end(hurry)
	if !strings.HasSuffix(log.String(), "events=1\n") {
		t.Errorf("the log is %q", log)
	}
}

// Of the agent's other events, only those are of interest that say what a person wants to know.
func TestOnEventOf(t *testing.T) {
	c := &eventCommand{queue: make(chan eventDocument, onEventWaiting)}
	for _, what := range []any{
		agent.Joining{}, agent.WorkersStarted{Step: agent.Step{Err: os.ErrNotExist}}, agent.AttemptFailed{Worker: nil, Failure: policy.Failure{Host: "host2"}},
		agent.AttemptFailed{}, agent.Suspected{What: "the workers hang", Why: "no output"}, agent.RestartCounted{Why: "x", File: "/r"}, agent.Finished{Result: &agent.Result{State: agent.Succeeded, Left: true}},
	} {
		e := ofJob
		e.What = what
		c.Observe(e)
	}
	close(c.queue)
	var got []string
	for d := range c.queue {
		got = append(got, strings.Join(slices.DeleteFunc([]string{d.Event, d.LostHost, d.Cause, d.Outcome, d.Report}, func(s string) bool { return s == "" }), "|"))
	}
	want := []string{"host lost|host2|host lost: host2", "host lost|host lost: the one that held the rendezvous", "hang|the workers hang: no output", "restart|x|/r", "end|left"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
