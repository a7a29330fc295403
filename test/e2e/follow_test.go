//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// `muster logs --follow` ends with the job that it follows, however that ends, and says
// how; `muster report` says the same afterwards, and while the job runs that it does.
func TestFollowEndsWithTheJob(t *testing.T) {
	t.Parallel()
	tool := func(name string) launcher {
		return launcher{"muster " + name, []string{filepath.Join(bin, "muster"), name}}
	}
	for _, tt := range []struct {
		name, last    string // of the worker's steps
		signal        syscall.Signal
		status        int
		follow, tells string
	}{
		{"succeeds", "exit:0", 0, 0, "muster logs: the job has succeeded\n", ": succeeded"},
		{"fails", "exit:3", 0, 1, "muster logs: the job has failed: rank 0 ", ": failed"},
		{"is preempted", "hang", syscall.SIGTERM, 75, "muster logs: the job was preempted: host ", ": preempted: host "},
		{"is stopped", "hang", syscall.SIGINT, 1, "muster logs: the agent was told to stop: ", ": stopped: "},
		{"is killed", "hang", syscall.SIGKILL, -9, "is gone and did not say how the job ended", ": was killed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			j := workers(t, muster(t), setup{}, "--standalone -r 3 --preemption-signals TERM --log-dir "+dir, `print:the line\n`, "ready", "gate", tt.last)
			j.await("ready 0")
			live := run(t, tool("report"), setup{}, dir).want(0)
			if live.tells(": still runs"); strings.Contains(live.out(), "no failure is recorded") {
				t.Errorf("of a job that runs the report says\n%s", live.out())
			}
			f := start(t, tool("logs"), setup{}, "--follow "+dir)
			if tt.signal != 0 {
				j.signal(tt.signal)
			} else {
				j.gate.Open()
			}
			j.want(tt.status)
			if f.want(0).says(tt.follow); !strings.Contains(f.out(), "the line\n") {
				t.Errorf("follow has printed %q", f.out())
			}
			run(t, tool("report"), setup{}, dir).want(0).tells(tt.tells)
			run(t, tool("logs"), setup{}, "-f "+dir).want(0).says(tt.follow)
		})
	}
}

// Who follows a job before it has workers waits for them.
func TestFollowFromTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := newMixed(t, "2", "--no-python --redirects 3")
	m.program = []string{"echo", "the line"}
	host := m.start(peer{l: muster(t), addr: "1", hosts: true, flags: "--log-dir " + dir})
	awaitText(host, "muster: log files in ")
	f := start(t, launcher{"muster logs", []string{filepath.Join(bin, "muster"), "logs"}}, setup{}, "-f --rank 0 "+dir)
	awaitText(f, "muster logs: waits for the first workers of "+dir)
	wantAll([]*job{host, m.start(peer{l: muster(t), addr: "2"})}, 0)
	if f.want(0).says("the job has succeeded"); f.out() != "[0]: the line\n" {
		t.Errorf("got %q", f.out())
	}
}

// Who follows a job has the lines of all hosts and attempts, however short those are.
func TestFollowShortAttempts(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2", "--no-python --max-restarts 3 --redirects 3 --log-dir "+t.TempDir())
	dir := t.TempDir() // of what the first and the last attempt wait for
	m.program = []string{"sh", "-c", `echo "rank $RANK is in attempt $TORCHELASTIC_RESTART_COUNT"
		case $TORCHELASTIC_RESTART_COUNT in 0 | 3) while [ ! -e "$0/$TORCHELASTIC_RESTART_COUNT" ]; do sleep 0.01; done; esac
		[ $TORCHELASTIC_RESTART_COUNT -lt 3 ] || exit 0
		[ $RANK -eq 1 ] || exec sleep 1000
		exit 1`, dir}
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
	awaitText(agents[0], "muster: log files in ")
	f := start(t, launcher{"muster logs", []string{filepath.Join(bin, "muster"), "logs"}}, setup{}, "--follow --stream stdout "+itoa(agents[0].cmd.Process.Pid))
	for _, attempt := range []string{"0", "3"} {
		for deadline := time.Now().Add(patience); strings.Count(f.out(), "is in attempt "+attempt+"\n") < 2; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(f.console())
			}
		}
		must(os.WriteFile(filepath.Join(dir, attempt), nil, 0o600))
	}
	wantAll(agents, 0)
	f.want(0)
	for attempt := range 4 {
		f.tells(fmt.Sprintf("rank 1 is in attempt %d\n", attempt))
	}
}

// tells looks for a text on stdout.
func (j *job) tells(text string) {
	j.t.Helper()
	if !strings.Contains(j.out(), text) {
		j.t.Errorf("no %q in\n%s", text, j.out())
	}
}
