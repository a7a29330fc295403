package postmortem

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/failure"
)

// A FIFO that has taken the place of a directory since that was seen holds nobody up.
func TestListOfAFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attempt_0")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	if entries, err := list(path); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("got %v, %v", entries, err)
	}
}

// Decoders alone, without files, so that a fuzzer gets far.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"version": 1, "title": "t", "run_id": "r", "host": "h", "attempt": 1, "max_restarts": 2, "cause": "c", "silent": ["x"], "left_out": 3, "failures": [{"rank": 1, "local_rank": 0, "kind": "failed", "failed_at": "2026-11-21T13:47:56.803353953Z", "stderr_tail": ["a"], "traceback": "x\ny"}]}`,
		`{"version": 1, "cause": "preempted: x", "failures": [], "preempted": {"host": "a", "signal": "SIGTERM", "time": "2026-11-21T13:47:56Z", "exit_status": 75, "grace_seconds": 1.5, "cut_short": "second signal", "workers": [{"rank": 1, "local_rank": 1, "pid": 2, "exit_code": -9, "signal": "SIGKILL", "ended_at": "2026-11-21T13:47:57Z", "stopped_by": "SIGTERM", "cut_short": true}]}}`,
		`{"reason": "r", "time": "2026-11-21T13:47:56Z", "summary": "a\nb"}`,
		"{}", "[", "null\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		run := &Run{Attempts: []Attempt{{Name: "attempt_0", Workers: []Worker{{Rank: -1}}}}}
		a := &run.Attempts[0]
		_ = a.parseReport(run, body)
		var x Autopsy
		if x.parse(body) == nil {
			a.Autopsies = append(a.Autopsies, x)
		}
		a.ranks(run)
		var b strings.Builder
		if err := run.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsFunc(b.String(), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("control characters in %q", b.String())
		}
	})
}

// Of the other workers that are shown, the lowest rank comes first.
func TestOthersByRank(t *testing.T) {
	var b strings.Builder
	a := Attempt{}
	for _, rank := range []int{5, 3, 0, 2} {
		a.Failures = append(a.Failures, &failure.ProcessFailure{Cause: "c", Observation: failure.Observation{Rank: rank}})
	}
	a.write(&b, map[string]string{})
	if got := regexp.MustCompile(`\brank \d`).FindAllString(b.String(), -1); !slices.Equal(got, []string{"rank 0", "rank 2", "rank 3"}) || a.Failures[1].Rank != 3 {
		t.Errorf("%q", got)
	}
}
