package failure_test

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/failure"
)

// The report of a preempted job says who asked and how the workers ended, and
// blames nobody.
func TestReportPreempted(t *testing.T) {
	p := &failure.Preemption{
		Host: "a\x1b[31m", Signal: failure.Signal(syscall.SIGTERM), Time: noon, Grace: 1.5, CutShort: "end of the grace period",
		Workers: []failure.PreemptedWorker{
			{Rank: 4, LocalRank: 0, PID: 10, Ended: after(time.Second), StoppedBy: failure.Signal(syscall.SIGTERM)},
			{Rank: 5, LocalRank: 1, PID: 11, ExitCode: -9, Signal: 9, Ended: after(2 * time.Second), StoppedBy: failure.Signal(syscall.SIGTERM), Killed: true},
			{Rank: 6, LocalRank: 2, PID: 12},
		},
	}
	r := failure.NewReport(failure.ReportConfig{Title: "t", Preempted: p}, nil)
	who := "host a received SIGTERM at " + noon.Format("15:04:05.000")
	want := "muster: the job is preempted: " + who + "; it may be started again\nmuster: killed at the end of the grace period: rank 5\n"
	if diff := cmp.Diff(want, text(t, r)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var got struct {
		Cause     string
		Preempted json.RawMessage
	}
	b, err := r.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(b, &got)
	}
	if err != nil || got.Cause != "preempted: "+who {
		t.Errorf("cause %q, %v", got.Cause, err)
	}
	stamp := func(d time.Duration) string { return after(d).UTC().Format("2006-01-02T15:04:05.000000000Z") }
	wantJSON := `{"host": "a\u001b[31m", "signal": "SIGTERM", "time": "` + stamp(0) + `", "exit_status": 75, "grace_seconds": 1.5, "cut_short": "end of the grace period", "workers": [` +
		`{"rank": 4, "local_rank": 0, "pid": 10, "exit_code": 0, "signal": null, "ended_at": "` + stamp(time.Second) + `", "stopped_by": "SIGTERM", "cut_short": false}, ` +
		`{"rank": 5, "local_rank": 1, "pid": 11, "exit_code": -9, "signal": "SIGKILL", "ended_at": "` + stamp(2*time.Second) + `", "stopped_by": "SIGTERM", "cut_short": true}, ` +
		`{"rank": 6, "local_rank": 2, "pid": 12, "exit_code": 0, "signal": null, "ended_at": null, "stopped_by": null, "cut_short": false}]}`
	if diff := cmp.Diff(wantJSON, string(got.Preempted)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// One that failed by itself meanwhile is reported as ever, below who asked.
func TestReportPreemptedFailure(t *testing.T) {
	p := &failure.Preemption{Host: "a", Signal: 35, Time: noon}
	r := failure.NewReport(failure.ReportConfig{Title: "t", Preempted: p}, []*failure.ProcessFailure{failure.New(failure.Observation{ExitCode: 3})})
	lines := strings.Split(text(t, r), "\n")
	if !strings.HasPrefix(lines[0], "muster: the job is preempted: host a received SIGRTMIN+1 at ") || !strings.HasPrefix(lines[1], "muster: rank 0 ") {
		t.Errorf("it begins with %q", lines[:2])
	}
	if b, _ := r.MarshalJSON(); !strings.Contains(string(b), `"cause": "rank 0 `) || !strings.Contains(string(b), `"workers": []`) {
		t.Errorf("%s", b)
	}
}

// Of many killed workers some are named.
func TestPreemptionText(t *testing.T) {
	p := &failure.Preemption{Host: "a", Signal: failure.Signal(syscall.SIGTERM), CutShort: "second signal"}
	for i := range 1000 {
		p.Workers = append(p.Workers, failure.PreemptedWorker{Rank: i, Killed: true})
	}
	if got := p.Text(); !strings.Contains(got, "killed at the second signal: rank 0, rank 1,") || !strings.Contains(got, " more\n") || len(got) > 1000 {
		t.Errorf("%q", got)
	}
}
