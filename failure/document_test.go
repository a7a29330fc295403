package failure_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/failure"
)

// decoded sends failures to another host.
func decoded(t *testing.T, all []*failure.ProcessFailure) []*failure.ProcessFailure {
	t.Helper()
	text, left := failure.Encode(all, 0, 1<<20)
	got, err := failure.Decode(text, 0)
	if err != nil || left != 0 {
		t.Fatalf("%s: %v, %d left out", text, err, left)
	}
	return got
}

// A report of failures that came from other hosts reads as it does there.
func TestWireKeepsTheReport(t *testing.T) {
	recorded := write(t, `{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback:\n  é\nValueError: boom", "timestamp": "5"}}}`)
	all := []*failure.ProcessFailure{
		peer(0, syscall.SIGTERM), peer(1, 0), peer(2, 40),
		failure.New(failure.Observation{Rank: 3, ExitCode: 1, Ended: noon, ErrorFile: recorded, Host: "h"}),
		failure.New(failure.Observation{Rank: 4, ExitCode: 1, Ended: noon, ErrorFile: write(t, "{"), Host: "h"}),
		failure.New(failure.Observation{Rank: 5, ExitCode: -11, CoreDumped: true, Started: after(-time.Hour), Ended: noon, Evidence: failure.Evidence{StderrTail: []byte(simple)}, StderrPath: "/x", Host: "h"}),
		failure.New(failure.Observation{Rank: 6, ExitCode: 3, Ended: noon, Evidence: failure.Evidence{StderrTail: []byte("a\nb\n")}, Host: "h"}),
		failure.New(failure.Observation{Rank: 7, Evidence: failure.Evidence{Err: fmt.Errorf("start worker 7: %w", syscall.ENOENT), Entrypoint: "/no"}, Ended: noon, Host: "h"}),
		failure.New(failure.Observation{Rank: 8, ExitCode: -9, OOM: "oom_kill 0→1", Abandoned: "nfs_wait", TimerExpired: "step", Ended: noon, Host: "h"}),
		failure.New(failure.Observation{Rank: 9, ExitCode: -15, StoppedBy: 15, Ended: after(time.Second), ErrorFile: recorded, Host: "h"}),
	}
	cfg := failure.ReportConfig{Title: "train.py", RunID: "job7"}
	sent, got := failure.NewReport(cfg, all), failure.NewReport(cfg, decoded(t, all))
	if diff := cmp.Diff(text(t, sent), text(t, got)); diff != "" {
		t.Errorf("text (-sent +got):\n%s", diff)
	}
	var sentJSON, gotJSON any
	for v, r := range map[*any]*failure.Report{&sentJSON: sent, &gotJSON: got} {
		b, err := json.Marshal(r)
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(sentJSON, gotJSON); diff != "" {
		t.Errorf("JSON (-sent +got):\n%s", diff)
	}
	for i, f := range sent.Failures {
		if want, got := f.ExitStatus(), got.Failures[i].ExitStatus(); got != want {
			t.Errorf("rank %d: exit status %d, want %d", f.Rank, got, want)
		}
	}
}

// A worker that was never started has no PID, rather than 0.
func TestNeverStarted(t *testing.T) {
	f := failure.New(failure.Observation{Rank: 1, Evidence: failure.Evidence{Err: syscall.ENOENT, Entrypoint: "/no"}, Ended: noon})
	if text, err := json.Marshal(f); err != nil || strings.Contains(string(text), `"pid"`) {
		t.Errorf("%s, %v", text, err)
	}
	r := failure.NewReport(failure.ReportConfig{}, []*failure.ProcessFailure{f})
	if text, err := json.Marshal(r); err != nil || !strings.Contains(string(text), `"pid":null`) {
		t.Errorf("%s, %v", text, err)
	}
}

// The first of a job's failures is the first by the clock that its hosts share.
func TestWireClocks(t *testing.T) {
	// The first host's clock is an hour ahead of the job's, the second's a minute
	// behind, ours two minutes behind.
	var all []*failure.ProcessFailure
	for rank, o := range []struct {
		failed time.Time // by the host's clock
		offset time.Duration
	}{{after(time.Hour + time.Second), -time.Hour}, {after(-time.Minute), time.Minute}} {
		text, _ := failure.Encode([]*failure.ProcessFailure{failure.New(failure.Observation{Rank: rank, ExitCode: 1, Started: o.failed, Ended: o.failed})}, o.offset, 1<<20)
		got, err := failure.Decode(text, 2*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got...)
	}
	r := failure.NewReport(failure.ReportConfig{}, all)
	if root := r.Root(); root.Rank != 1 || !root.FailedAt.Equal(after(-2*time.Minute)) || !root.Ended.Equal(root.FailedAt) || !root.Started.Equal(root.FailedAt) {
		t.Errorf("root is rank %d at %v, want 1 at %v", root.Rank, root.FailedAt, after(-2*time.Minute))
	}
}

// However much the workers said, a list has its limit, and the end of the first
// failure's traceback is in it.
func TestWireLimit(t *testing.T) {
	long := "Traceback (most recent call last):\n" + strings.Repeat("  File \"é.py\", line 3, in f\n    f(1)\n", 1000) + "ValueError: boom\n"
	var all []*failure.ProcessFailure
	for i := range 300 {
		all = append(all, failure.New(failure.Observation{Rank: i, ExitCode: 1, Ended: noon, Evidence: failure.Evidence{StderrTail: []byte(long)}, Host: "h.example"}))
	}
	for _, limit := range []int{0, 2, 100, 2000, 16 << 10, 64 << 10, 1 << 20} {
		text, left := failure.Encode(all, 0, limit)
		got, err := failure.Decode(text, 0)
		if err != nil || len(got)+left != len(all) || len(text) > max(limit, 2) {
			t.Errorf("limit %d: %d bytes, %d failures and %d left out, %v", limit, len(text), len(got), left, err)
			continue
		}
		if limit >= 16<<10 && !strings.HasSuffix(strings.TrimSpace(got[0].Traceback), "ValueError: boom") {
			t.Errorf("limit %d: the first traceback is %.100q", limit, got[0].Traceback)
		}
		if limit >= 1<<20 && left > 0 {
			t.Errorf("limit %d: %d left out", limit, left)
		}
	}
	text, left := failure.Encode(nil, 0, 100)
	if string(text) != "[]" || left != 0 {
		t.Errorf("no failures are %s, %d left out", text, left)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":        "list of failures",
		"{}":      "cannot unmarshal object",
		"[1]":     "cannot unmarshal number",
		"[null]":  "no failed_at",
		`[{}]`:    "no failed_at",
		"[{},{},": "list of failures",
		`[{"cause": "x", "failed_at": "yesterday"}]`: "yesterday",
		"[" + strings.Repeat("{},", 1<<17) + "{}]":   "members",
		"[] []":                          "after top-level value",
		"nul":                            "list of failures",
		`[{"cause": "x", "rank": 1e99}]`: "1e99",
		`[{"cause": "x", "failed_at": "0001-01-01T00:00:00Z"}]`: "no failed_at",
	} {
		if got, err := failure.Decode([]byte(text), 0); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%.50q: %v, %v, want an error with %q", text, got, err, want)
		}
	}
	// What cannot be shown is bounded, or counts as missing.
	got, err := failure.Decode([]byte(`[{"cause": "x\u001b[31m\ny", "failed_at": "2026-11-21T12:00:00Z", "kind": "odd", "rank": -7, "pid": -7,
		"stopped_by": "SIGNOT", "signal": "SIGKILL", "started_at": null, "stderr_tail": ["\u009b", "a\nb"], "start_error": "z", "errno": -5, "exit_code": -900}]`), 0)
	if err != nil {
		t.Fatal(err)
	}
	if f := got[0]; f.Cause != "x y" || f.Kind != failure.Failed || f.Rank != -1 || f.PID != 0 || f.StoppedBy != 0 || f.Signal != 64 || !f.Started.IsZero() || f.Message == "" || f.LastLines[1] != "a b" || f.StartError != "z" {
		t.Errorf("decoded %+v", f)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`[{"rank": 1, "host": "h", "kind": "failed", "cause": "exit code 3", "exit_code": 3, "failed_at": "2026-11-21T12:00:00.000000001Z", "message": "m"}]`))
	f.Add([]byte(`[{"kind": "stopped", "cause": "x", "stopped_by": "SIGTERM", "failed_at": "2026-11-21T12:00:00Z", "recorded": true, "error_file": "/e", "traceback": "T\n\u001b[31m", "stderr_tail": ["a\nb", null]}]`))
	f.Add([]byte(`[{"kind": "lost peer", "cause": "\ud800\u202e", "start_error": "e", "errno": 2, "failed_at": "9999-01-01T00:00:00Z"}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := failure.Decode(text, time.Hour)
		if err != nil {
			return
		}
		for _, f := range got[:min(len(got), 20)] {
			checkFailure(t, f)
		}
		again, left := failure.Encode(got, time.Hour, 1<<20)
		if back, err := failure.Decode(again, time.Hour); err != nil || len(back)+left != len(got) {
			t.Errorf("%s: %v", again, err)
		}
	})
}

// A reader gets what was written, also by older releases, whose keys had another order.
func TestParseReport(t *testing.T) {
	older, err := failure.ParseReport([]byte(read(t, "testdata/report/older.json")))
	if err != nil {
		t.Fatal(err)
	}
	newer, err := failure.ParseReport([]byte(read(t, "testdata/report/report.json")))
	if err != nil {
		t.Fatal(err)
	}
	if older.FirstRank != -1 {
		t.Errorf("an older report has the first rank %d", older.FirstRank)
	}
	older.FirstRank = newer.FirstRank
	if diff := cmp.Diff(newer, older, cmpopts.IgnoreUnexported(failure.ProcessFailure{})); diff != "" {
		t.Errorf("-report.json +older.json:\n%s", diff)
	}
	if f := older.Failures[1]; older.Restarts != 3 || f.Kind != failure.Stopped || f.StoppedBy != failure.Signal(syscall.SIGTERM) || f.Signal != f.StoppedBy || !f.Started.IsZero() {
		t.Errorf("%+v, %+v", older, f)
	}
	text, err := json.MarshalIndent(newer, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(read(t, "testdata/report/report.json"), string(text)+"\n"); diff != "" {
		t.Errorf("written again, -want +got:\n%s", diff)
	}
	empty, err := failure.ParseReport([]byte(`{"failures": [null], "preempted": null}`))
	if err != nil || len(empty.Failures) != 0 || empty.Restarts != -1 {
		t.Errorf("%+v, %v", empty, err)
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"version": 1, "failures": [{"rank": 1, "kind": "odd", "cause": "c\u001b[2J", "failed_at": "9999-01-01T00:00:00Z"}, null], "silent": ["\u009b"]}`))
	f.Add([]byte(`{"preempted": {"host": "a\n", "signal": "SIGTERM", "time": "0000-01-01T00:00:00Z", "workers": [{"rank": -5, "exit_code": -9}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, _ := failure.ParseReport(body)
		text, err := r.MarshalJSON()
		if err != nil || !json.Valid(text) {
			t.Errorf("%s: %v", text, err)
		}
		for _, f := range r.Failures[:min(len(r.Failures), 20)] {
			if f.Cause != "" {
				checkFailure(t, f)
			}
		}
	})
}
