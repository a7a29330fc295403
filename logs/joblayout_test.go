//go:build linux

package logs_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/logs"
)

// jobRun makes the run of an agent in the directory of its job.
func jobRun(t *testing.T, dir, runID string) (*logs.Run, error) {
	t.Helper()
	r, err := logs.New(logs.Config{Dir: dir, RunID: runID, Job: true, Redirects: parse(t, "3"), Stdout: os.Stdout, Stderr: os.Stderr, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Cleanup(func() { _ = r.Close(true) })
	}
	return r, err
}

// Each agent has a directory of its own, be it on one host or under a run ID that was used before,
// and names in it that are the same on all hosts.
func TestJobLayout(t *testing.T) {
	dir := t.TempDir()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var last *logs.Run
	for _, want := range []string{host, host + ".1", host + ".2"} {
		if last, err = jobRun(t, dir, "job7"); err != nil {
			t.Fatal(err)
		}
		if got := last.Dir(); got != filepath.Join(dir, "job7", want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, tt := range []struct {
		restart, round int
		want           string
	}{{0, 0, "attempt_0"}, {0, 1, "attempt_0.1"}, {0, 1, "attempt_0.2"}, {1, 3, "attempt_1.3"}, {4, 4, "attempt_4"}} {
		a, err := last.AttemptInRound(tt.restart, tt.round, []logs.Worker{{LocalRank: 0, Rank: 8}, {LocalRank: 1, Rank: 9}})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := a.Sink(1).StdoutPath, filepath.Join(last.Dir(), tt.want, "9", "stdout.log"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if err := a.Started(); err != nil {
			t.Error(err)
		}
		if _, err := a.Finish(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A run ID is one file name, another one than of any other run ID, and none that a reader takes
// for something else.
func TestJobLayoutNames(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{}
	for _, id := range []string{"a/b", "a_b", "a b", "../x", "..", ".", "attempt_0", "a\nb", "\x1b[31m", "a\xff", strings.Repeat("x", 300), strings.Repeat("x", 301), "Job-7.1=x"} {
		r, err := jobRun(t, dir, id)
		if err != nil {
			t.Errorf("%q: %v", id, err)
			continue
		}
		rel, err := filepath.Rel(dir, filepath.Dir(r.Dir()))
		if err != nil || strings.ContainsAny(rel, "/\n\x1b ") || strings.HasPrefix(rel, ".") || strings.HasPrefix(rel, "attempt_") || seen[rel] {
			t.Errorf("%q: %q, %v", id, rel, err)
		}
		seen[rel] = true
	}
	if !seen["Job-7.1=x"] || !seen["a_b"] {
		t.Errorf("plain names have changed: %v", seen)
	}
}

// In a directory where everybody may write, nobody has what he has put there written to.
func TestJobLayoutHostile(t *testing.T) {
	dir, victim := t.TempDir(), t.TempDir()
	if err := os.Symlink(victim, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{"link": "is a file or a link; remove it, or name another run ID", "file": "is a file or a link"}
	if os.Geteuid() == 0 {
		other := filepath.Join(dir, "theirs")
		if err := os.Mkdir(other, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(other, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		tests["theirs"] = "belongs to another user (uid 12345)"
	}
	for id, want := range tests {
		if r, err := jobRun(t, dir, id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", id, r, err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, id)); err == nil && len(left) > 0 {
			t.Errorf("%s: %v is left", id, left)
		}
	}
}
