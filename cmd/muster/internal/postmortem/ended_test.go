package postmortem_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/internal/job/jobfile"
)

// agentRuns is an agent that begins in a directory.
func agentRuns(t *testing.T, dir string) *jobfile.Writer {
	t.Helper()
	host, _ := os.Hostname()
	w, err := jobfile.Create(dir, jobfile.Begin{RunID: "job/1", Title: "train.py", Host: host, PID: 42, Started: time.Now(), MaxRestarts: 3})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func end(t *testing.T, w *jobfile.Writer, outcome, cause string) {
	t.Helper()
	if err := w.End(jobfile.End{Outcome: outcome, Cause: cause, Ended: time.Now()}, false); err != nil {
		t.Fatal(err)
	}
}

// A followed job ends when its agent says so, and nothing that was written before is
// missing; if it had ended before, at once.
func TestFollowEnds(t *testing.T) {
	for _, tt := range []struct{ outcome, cause, want string }{
		{jobfile.Succeeded, "", "the job has succeeded"},
		{jobfile.Failed, "rank 1: \x1b[31mboom", "the job has failed: rank 1: boom"},
		{jobfile.Preempted, "host a received SIGTERM", "the job was preempted: host a received SIGTERM"},
		{jobfile.Stopped, "received SIGINT", "the agent was told to stop: received SIGINT"},
		{jobfile.Left, "rule r", "this host has left the job: rule r"},
	} {
		dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a\n"})
		w := agentRuns(t, dir)
		f := follow(t, dir, postmortem.FollowConfig{Lines: -1})
		f.sees("[0]:a\n")
		f.write("attempt_1/0/stdout.log", "b\nlast")
		end(t, w, tt.outcome, tt.cause)
		f.endsItself("== attempt_1\n[0]:b\n[0]:last\n== " + tt.want + "\n")
		follow(t, dir, postmortem.FollowConfig{Lines: -1}).endsItself("[0]:b\n[0]:last\n== " + tt.want + "\n")
	}
}

// An agent that is gone without a word ends it, too.
func TestFollowKilled(t *testing.T) {
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a\n"})
	file, err := os.OpenFile(filepath.Join(dir, jobfile.Name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	host, _ := os.Hostname()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(file, "{\"version\": 1, \"host\": %q, \"pid\": 42, \"locked\": true}\n", host); err != nil {
		t.Fatal(err)
	}
	f := follow(t, dir, postmortem.FollowConfig{Lines: -1})
	f.sees("[0]:a\n")
	f.write("attempt_0/0/stdout.log", "b")
	file.Close()
	want := "== the agent (pid 42 on host " + host + ") is gone and did not say how the job ended; it was killed, or its host was\n"
	f.endsItself("[0]:b\n" + want)
	follow(t, dir, postmortem.FollowConfig{Lines: -1}).endsItself("[0]:a\n[0]:b\n" + want)
}

// The report tells a job that went well from one that still runs, or was killed.
func TestReportOfAgent(t *testing.T) {
	host, _ := os.Hostname()
	says := func(dir, what string, outcome postmortem.Outcome, want ...string) {
		t.Helper()
		run := read(t, dir)
		got := text(t, run)
		if run.Outcome != outcome {
			t.Errorf("%s: the outcome is %s, want %s", what, run.Outcome, outcome)
		}
		for _, want := range append(want, "train.py: ", "  run id     job/1\n") {
			if !strings.Contains(strings.ReplaceAll(got, "run id       job", "run id     job"), want) {
				t.Errorf("%s: no %q in\n%s", what, want, got)
			}
		}
	}
	for outcome, want := range map[string]string{
		jobfile.Succeeded: "succeeded, 0 of 3 restarts used\n", jobfile.Failed: "failed, 0 of 3 restarts used: why\n",
		jobfile.Preempted: "preempted, 0 of 3 restarts used: why\n", jobfile.Stopped: "stopped, 0 of 3 restarts used: why\n", jobfile.Left: "continued without this host, 0 of 3 restarts used: why\n",
	} {
		dir := tree(t, map[string]string{"attempt_0/0/stdout.log": ""})
		w := agentRuns(t, dir)
		says(dir, "while it runs", postmortem.Running, "train.py: still runs, 0 of 3", fmt.Sprintf("  agent      pid 42 on host %s\n", host))
		cause := "why"
		if outcome == jobfile.Succeeded {
			cause = ""
		}
		end(t, w, outcome, cause)
		says(dir, outcome, postmortem.Outcome(outcome), want)
	}
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "", jobfile.Name: `{"version": 1, "run_id": "job/1", "title": "train.py", "host": "` + host + `", "pid": 42, "locked": true}` + "\n"})
	says(dir, "a lock that nobody holds", postmortem.Killed, "train.py: was killed", "pid 42 on host "+host+", gone without a word\n")

	// What cannot be believed is said, and changes nothing.
	dir = tree(t, map[string]string{"attempt_0/0/stdout.log": "", jobfile.Name: "boo\n"})
	run := read(t, dir)
	if run.Outcome != postmortem.Unknown || len(run.Problems) != 1 || !strings.Contains(run.Problems[0], jobfile.Name) {
		t.Errorf("%+v", run)
	}
}

// The last attempt of a job that has ended lasted as long as the job, also where nothing
// but files tells of it: a worker that was silent at its end left no time.
func TestEndOfTheLastAttempt(t *testing.T) {
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a\n"})
	w := agentRuns(t, dir)
	ended := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	if err := w.End(jobfile.End{Outcome: jobfile.Succeeded, Ended: ended}, false); err != nil {
		t.Fatal(err)
	}
	run := read(t, dir)
	if a := run.Attempts[0]; !run.Ended.Equal(ended) || !a.Ended.Equal(ended) || a.TimesFrom != "job" {
		t.Errorf("the run ended at %v, its attempt at %v (by %s), want %v", run.Ended, a.Ended, a.TimesFrom, ended)
	}
}

// In a job of one host the global ranks are the local ones, also before a file tells them.
func TestRanksOfOneHost(t *testing.T) {
	for nodes, want := range []int{-1, 1, -1} {
		dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a\n", "attempt_0/1/stdout.log": "b\n"})
		w, err := jobfile.Create(dir, jobfile.Begin{MaxNodes: nodes})
		if err != nil {
			t.Fatal(err)
		}
		run := read(t, dir)
		if got := run.Attempts[0].Workers[1].Rank; got != want {
			t.Errorf("of %d nodes: rank %d, want %d", nodes, got, want)
		}
		end(t, w, jobfile.Stopped, "")
		if nodes == 1 {
			follow(t, dir, postmortem.FollowConfig{Lines: -1, Selection: postmortem.Selection{Ranks: rank1}}).endsItself("[1]:b\n== the agent was told to stop\n")
		}
	}
}

// Two agents with one host name: the failures of the other are not of this one's directories.
func TestRanksOfTwoAgentsOnOneHost(t *testing.T) {
	report := `{"version": 1, "host": "h", "first_rank": 0, "cause": "c", "failures": [{"rank": 3, "local_rank": 1, "kind": "failed", "cause": "c", "host": "h", "failed_at": "2026-11-21T13:47:56Z"}]}`
	for _, c := range []struct {
		report string
		want   int
	}{{report, 1}, {strings.Replace(report, `"first_rank": 0, `, "", 1), -1}} {
		dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a\n", "attempt_0/1/stdout.log": "b\n", "attempt_0/report.json": c.report})
		if got := read(t, dir).Attempts[0].Workers[1].Rank; got != c.want {
			t.Errorf("%s: rank %d, want %d", c.report, got, c.want)
		}
	}
}
