package postmortem_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/internal/jobfile"
)

// A shared directory of a job, in which agents of several hosts write.
type shared struct {
	*testing.T
	dir string
}

// host begins an agent.
func (s *shared) host(dir, name string, began time.Time) *jobfile.Writer {
	s.Helper()
	path := filepath.Join(s.dir, dir)
	if err := os.MkdirAll(path, 0o700); err != nil {
		s.Fatal(err)
	}
	w, err := jobfile.Create(path, jobfile.Begin{RunID: "job/7", Title: "train.py", Host: name, PID: 42, Started: began, MaxRestarts: 3, MaxNodes: 4, Layout: jobfile.JobLayout})
	if err != nil {
		s.Fatal(err)
	}
	return w
}

// attempt makes an attempt's directories at a time, with a line of each rank.
func (s *shared) attempt(dir string, at time.Time, ranks ...int) {
	s.Helper()
	path := filepath.Join(s.dir, dir)
	for _, rank := range ranks {
		of := filepath.Join(path, fmt.Sprint(rank))
		if err := os.MkdirAll(of, 0o700); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(of, "stdout.log"), fmt.Appendf(nil, "rank %d in %s\n", rank, dir), 0o600); err != nil {
			s.Fatal(err)
		}
	}
	if err := os.Chtimes(path, at, at); err != nil {
		s.Fatal(err)
	}
}

func (s *shared) ends(w *jobfile.Writer, outcome string, at time.Time) {
	s.Helper()
	if err := w.End(jobfile.End{Outcome: outcome, Ended: at}, false); err != nil {
		s.Fatal(err)
	}
}

func byGlobalRank(ranks string, _ bool) string { return "[" + ranks + "]: " }

// All hosts of a job are one run, with the earliest root cause of them, whenever they joined;
// earlier runs under the same run ID are others.
func TestHosts(t *testing.T) {
	top := t.TempDir()
	s := &shared{t, filepath.Join(top, "job7")}
	now := time.Now().Truncate(time.Second)
	ago := func(minutes int) time.Time { return now.Add(-time.Duration(minutes) * time.Minute) }
	old := s.host("a", "a", ago(90))
	s.attempt("a/attempt_0", ago(89), 0, 1)
	s.ends(old, jobfile.Failed, ago(70))
	a, b := s.host("a.1", "a", ago(60)), s.host("b", "b", ago(59))
	s.attempt("a.1/attempt_0", ago(58), 0, 1)
	s.attempt("b/attempt_0", ago(58), 2, 3)
	c := s.host("c", "c", ago(40)) // joins later: its rank was another's
	s.attempt("a.1/attempt_0.1", ago(39), 0, 1)
	s.attempt("c/attempt_0.1", ago(39), 2, 3)
	s.attempt("b/attempt_0.1", ago(39), 4, 5)
	for host, at := range map[string]int{"a.1": 21, "b": 22, "c": 20} {
		report := fmt.Sprintf(`{"version": 1, "cause": "as %s has it", "failures": [{"kind": "failed", "cause": "boom", "rank": 5, "local_rank": 1, "host": "b", "exit_code": 1, "failed_at": "%s"}]}`,
			host, ago(at).Format(time.RFC3339))
		path := filepath.Join(s.dir, host, "attempt_0.1")
		if err := os.WriteFile(filepath.Join(path, "report.json"), []byte(report), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.ends(b, jobfile.Failed, ago(20))
	s.ends(c, jobfile.Failed, ago(19))
	for _, dir := range []string{top, s.dir} {
		runs, _, err := postmortem.Find(dir)
		if err != nil || len(runs) != 2 || len(runs[0].Hosts) != 3 || len(runs[1].Hosts) != 1 || runs[0].RunID != "job/7" || runs[0].Path != s.dir {
			t.Fatalf("%+v, %v", runs, err)
		}
		run, err := runs[0].Read()
		if err != nil {
			t.Fatal(err)
		}
		if run.Outcome != postmortem.Running || len(run.Attempts) != 2 || run.Attempts[1].Cause != "as b has it" {
			t.Errorf("%s %+v", run.Outcome, run.Attempts)
		}
		var out strings.Builder
		if err := postmortem.Print(to(&out, byGlobalRank), run.Attempts[1].Streams(true, true, everyone), -1); err != nil {
			t.Error(err)
		}
		want := "[0]: rank 0 in a.1/attempt_0.1\n[1]: rank 1 in a.1/attempt_0.1\n[2]: rank 2 in c/attempt_0.1\n[3]: rank 3 in c/attempt_0.1\n[4]: rank 4 in b/attempt_0.1\n[5]: rank 5 in b/attempt_0.1\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		for _, want := range []string{"train.py: still runs after 2 attempts", "a: still runs, in a.1\n", "b: failed, in b\n", "c/attempt_0.1/2/", "b/attempt_0.1/report.json"} {
			if got := text(t, run); !strings.Contains(got, want) {
				t.Errorf("%q is not in\n%s", want, got)
			}
		}
	}
	// A host's own directory is that of the host.
	runs, _, err := postmortem.Find(filepath.Join(s.dir, "b"))
	if err != nil || len(runs) != 1 || runs[0].Hosts != nil {
		t.Fatalf("%+v, %v", runs, err)
	}
	if own := read(t, runs[0].Path); own.Attempts[1].Workers[1].Rank != 5 || own.Attempts[1].Workers[1].LocalRank != 1 {
		t.Errorf("%+v", own.Attempts[1].Workers)
	}
	// An agent finds the job there of which it is one host, or waits to be.
	spare := s.host("spare", "spare", now)
	for name, want := range map[string]string{"b": "a.1 b c spare", "a": "a", "spare": "a.1 b c spare"} {
		job, err := postmortem.OfAgent(filepath.Join(s.dir, name))
		var got []string
		for _, h := range job.Hosts {
			got = append(got, filepath.Base(h.Path))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v, want %s", name, got, err, want)
		}
	}
	s.ends(a, jobfile.Failed, now)
	s.ends(spare, jobfile.Failed, now)
	if runs, _, err = postmortem.Find(s.dir); err != nil {
		t.Fatal(err)
	}
	run, err := runs[0].Read()
	if err != nil || run.Outcome != postmortem.Failed || run.Ended.Before(now) {
		t.Errorf("%+v, %v", run, err)
	}
	if got := text(t, run); !strings.Contains(got, "spare: failed, in spare\n") {
		t.Errorf("no spare in\n%s", got)
	}
	// What became of an agent that started no workers, and the list.
	runs, _, err = postmortem.Find(filepath.Join(s.dir, "spare"))
	if err != nil || len(runs) != 1 {
		t.Fatalf("%+v, %v", runs, err)
	}
	if got := text(t, read(t, runs[0].Path)); !strings.Contains(got, "train.py: failed, 0 of ") || !strings.Contains(got, "none were started here\n") {
		t.Error(got)
	}
	if list := postmortem.List(runs); list[0].Outcome != postmortem.Failed || list[0].Attempts != 0 {
		t.Errorf("%+v", list)
	}
}

// An agent that is started again when the job has failed is of another run, also while another
// host still ends; one that is started again while the job goes on is of the same.
func TestHostsAgain(t *testing.T) {
	for outcome, want := range map[string]string{jobfile.Failed: "a.1 b", jobfile.Left: "a a.1 b"} {
		s := &shared{t, t.TempDir()}
		now := time.Now()
		a, b := s.host("a", "a", now.Add(-4*time.Hour)), s.host("b", "b", now.Add(-4*time.Hour))
		s.attempt("a/attempt_0", now.Add(-3*time.Hour), 0)
		s.attempt("b/attempt_0", now.Add(-3*time.Hour), 1)
		s.ends(a, outcome, now.Add(-2*time.Hour))
		s.host("a.1", "a", now.Add(-time.Hour))
		s.attempt("a.1/attempt_0.1", now, 0)
		s.ends(b, outcome, now)
		runs, _, err := postmortem.Find(s.dir)
		if err != nil || len(runs) != 1 {
			t.Fatalf("%+v, %v", runs, err)
		}
		var got []string
		for _, h := range runs[0].Hosts {
			got = append(got, filepath.Base(h.Path))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", outcome, got, want)
		}
	}
}

// Lines of all hosts are followed, also of hosts that come; late ones say of which attempt they are.
func TestFollowHosts(t *testing.T) {
	s := &shared{t, t.TempDir()}
	a, b := s.host("a", "a", time.Now()), s.host("b", "b", time.Now())
	s.attempt("a/attempt_0", time.Now(), 0)
	runs, _, err := postmortem.Find(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	f := follow(t, s.dir, postmortem.FollowConfig{Hosts: runs[0].Hosts, Attempt: "attempt_0", Lines: 1, Printing: postmortem.Printing{Prefix: byGlobalRank}})
	f.sees("[0]: rank 0 in a/attempt_0\n")
	f.write("b/attempt_0/1/stdout.log", "early\n")
	f.sees("[1]: early\n")
	c := s.host("c", "c", time.Now())
	f.write("c/attempt_0.1/2/stdout.log", "one\ntwo\n")
	f.sees("== attempt_0.1\n[2]: one\n[2]: two\n")
	f.write("b/attempt_0/1/stdout.log", "late\n")
	f.sees("[1 attempt_0]: late\n")
	f.write("b/attempt_0.1/1/stdout.log", "on time\n")
	f.sees("[1]: on time\n")
	for _, w := range []*jobfile.Writer{a, b} {
		s.ends(w, jobfile.Succeeded, time.Now())
	}
	s.ends(c, jobfile.Left, time.Now())
	f.endsItself("== a, b: the job has succeeded\n== c: this host has left the job\n")
}
