package postmortem_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/failure"
)

// A preempted job is told apart from a failed one by its report.
func TestPreempted(t *testing.T) {
	at := time.Date(2026, time.March, 4, 12, 0, 0, 5, time.UTC)
	p := &failure.Preemption{
		Host: "a", Signal: failure.Signal(syscall.SIGTERM), Time: at, Grace: 30, CutShort: "second signal",
		Workers: []failure.PreemptedWorker{
			{Rank: 8, LocalRank: 0, PID: 9, Ended: at.Add(2 * time.Second), StoppedBy: failure.Signal(syscall.SIGTERM)},
			{Rank: 9, LocalRank: 1, PID: 10, ExitCode: -9, Ended: at.Add(3 * time.Second), StoppedBy: failure.Signal(syscall.SIGTERM), Killed: true},
			{Rank: 10, LocalRank: 2, PID: 11, Ended: at.Add(-time.Second)},
		},
	}
	var b strings.Builder
	failed := failure.NewReport(failure.ReportConfig{Title: "train.py", Host: "n0", Restarts: 3}, []*failure.ProcessFailure{failure.New(failure.Observation{ExitCode: 1})})
	if err := failed.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	first := b.String()
	b.Reset()
	if err := failure.NewReport(failure.ReportConfig{Title: "train.py", Host: "n0", Attempt: 1, Restarts: 3, FirstRank: 8, Preempted: p}, nil).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	run := read(t, tree(t, map[string]string{"attempt_0/report.json": first, "attempt_1/report.json": b.String(), "attempt_1/0/stderr.log": "", "attempt_1/1/": "", "attempt_1/2/": ""}))
	who := "host a received SIGTERM at " + at.Local().Format("2006-01-02 15:04:05")
	if run.Outcome != postmortem.Preempted || run.Attempts[0].Outcome != postmortem.Failed || run.Attempts[1].Workers[2].Rank != 10 {
		t.Errorf("%+v", run)
	}
	got := text(t, run)
	for _, want := range []string{
		"train.py: preempted after 2 attempts, 1 of 3 restarts used: " + who + "\n", "  exit status  75: it may be started again\n",
		"  result  preempted: " + who + "\n",
		"    rank 8 (local_rank 0, pid 9): exit status 0, 2.0 s after the signal\n",
		"    rank 9 (local_rank 1, pid 10): killed by SIGKILL at the second signal, 3.0 s after the signal\n",
		"    rank 10 (local_rank 2, pid 11): exit status 0, by itself\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// A worker that failed by itself meanwhile is shown as well.
func TestPreemptedFailure(t *testing.T) {
	var b strings.Builder
	p := &failure.Preemption{Host: "a", Signal: failure.Signal(syscall.SIGTERM), Time: time.Unix(1e9, 0)}
	if err := failure.NewReport(failure.ReportConfig{Title: "t", Host: "n0", Preempted: p}, []*failure.ProcessFailure{failure.New(failure.Observation{ExitCode: 3})}).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	run := read(t, tree(t, map[string]string{"attempt_0/report.json": b.String()}))
	if got := text(t, run); run.Outcome != postmortem.Preempted || !strings.Contains(got, "  result      preempted: host a") || !strings.Contains(got, "  root cause  rank 0 ") {
		t.Errorf("%s:\n%s", run.Outcome, got)
	}
}
