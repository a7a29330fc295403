//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// prints says that a command's stdout has some texts.
func prints(t *testing.T, j *job, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(j.out(), text) {
			t.Errorf("%q is not in\n%s", text, j.out())
		}
	}
}

// output is what a command of the system prints.
func output(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// What three hosts write into a shared directory, one of which joins later, is one job for muster
// report, logs and bundle; the same run ID again leaves it as it is.
func TestHostsLogLayout(t *testing.T) {
	t.Parallel()
	c := backend(t, "c10d")
	s := newSite(t, 3+c.hosts)
	s.conf += ",last_call_timeout=5" // of the first two hosts, and enough for those to come back
	c.prepare(s)
	shared, fail := t.TempDir(), filepath.Join(t.TempDir(), "fail")
	dir := filepath.Join(shared, s.runID)
	s.program = []string{"sh", "-c", `echo "rank $RANK of $WORLD_SIZE"; while [ ! -e ` + fail + ` ]; do sleep 0.1; done; [ $RANK != 3 ] || echo boom >&2; [ $RANK != 3 ] || exit 3; sleep 1000`}
	flags := "--nnodes 2:3 --nproc-per-node 2 --no-python --redirects 3 --tee 3 --ranks-filter 0,3 --log-layout job --log-dir " + shared
	agents := s.startAll(2, flags)
	for _, j := range agents {
		s.untilSays(j, " of 4\n")
	}
	follow := onHost(t, s.lab.Host(2), s.wrote, errand{argv: []string{filepath.Join(bin, "muster"), "logs", "-f", "--stream", "stdout", dir}})
	for rank := range 4 {
		s.untilSays(follow, fmt.Sprintf("[%d]: rank %d of 4\n", rank, rank))
	}
	agents = append(agents, s.start(2, flags))
	for rank := range 6 {
		s.untilSays(follow, fmt.Sprintf("[%d]: rank %d of 6\n", rank, rank))
	}
	bundle := filepath.Join(t.TempDir(), "live.tar.gz")
	s.command(1, 0, "bundle", "-o", bundle, s.runID)
	if list := output(t, "tar", "tzf", bundle); strings.Count(list, "/job.jsonl\n") != 3 || strings.Count(list, "/report.txt\n") != 1 || strings.Count(list, "/attempt_0.1/") != 6*2 {
		t.Error(list)
	}
	if err := os.WriteFile(fail, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	s.want(1, agents...)
	s.want(0, follow)
	if follow.says("muster logs: attempt_0.1\n"); !strings.Contains(follow.errs(), "the job has failed: rank 3 ") {
		t.Error(follow.errs())
	}
	printed := 0
	for _, j := range agents {
		printed += strings.Count(j.out(), "rank 3 of ")
		if strings.Contains(j.out(), "rank 1 of ") || strings.Contains(j.out(), "rank 2 of ") {
			t.Errorf("the filter lets through %s", j.out())
		}
	}
	if printed != 2 {
		t.Errorf("rank 3 is on the consoles %d times, want once for each attempt", printed)
	}
	look := func() {
		t.Helper()
		prints(t, s.command(0, 0, "report", dir), "sh: failed after 2 attempts", "host       host2: failed, in host2\n", "  root cause  rank 3 ", "rank 5")
		want := []string{"", "rank 0 of 6", "rank 1 of 6", "rank 2 of 6", "rank 3 of 6", "rank 4 of 6", "rank 5 of 6"}
		got := strings.Split(s.command(1, 0, "logs", "--stream", "stdout", shared).out(), "\n")
		for i, line := range got {
			_, got[i], _ = strings.Cut(line, "]: ")
		}
		if slices.Sort(got); !cmp.Equal(want, got) {
			t.Error(cmp.Diff(want, got))
		}
	}
	look()
	files, err := filepath.Glob(dir + "/host?/attempt_0*/*/stdout.log")
	if err != nil || len(files) != 4+6 {
		t.Errorf("%v, %v", files, err)
	}
	bundle = filepath.Join(t.TempDir(), "b.tar.gz")
	s.command(2, 0, "bundle", "-o", bundle, dir)
	if list := output(t, "tar", "tzf", bundle); strings.Count(list, "/job.jsonl\n") != 3 || strings.Count(list, "/report.txt\n") != 1 {
		t.Error(list)
	}

	// The same again: the old one stays, and is another run.
	before := output(t, "find", dir, "-type", "f")
	s.want(1, s.startAll(2, "--nnodes 2 --nproc-per-node 2 --no-python --redirects 3 --log-layout job --log-dir "+shared)...)
	prints(t, s.command(0, 0, "report", dir), "sh: failed, 0 of 0 restarts used", "in host0.1\n", "in host1.1\n")
	if list := s.command(0, 0, "report", "--list", shared).out(); strings.Count(list, "\n") != 2 {
		t.Error(list)
	}
	for file := range strings.Lines(before) {
		if _, err := os.Stat(strings.TrimSpace(file)); err != nil {
			t.Error(err)
		}
	}
}

// A bundle of a job has all its agents on this host.
func TestHostsBundleOfTwoAgents(t *testing.T) {
	t.Parallel()
	c := backend(t, "c10d")
	s := newSite(t, 1+c.hosts)
	c.prepare(s)
	s.env = []string{"XDG_RUNTIME_DIR=" + t.TempDir()} // no other test's jobs
	s.program = []string{"sh", "-c", "echo here; exec sleep 1000"}
	flags := "--nnodes 2 --nproc-per-node 1 --no-python --tee 3 --log-dir " + t.TempDir()
	agents := []*job{s.start(0, flags), s.start(0, flags)}
	for _, j := range agents {
		s.untilSays(j, "here\n")
	}
	muster := func(args ...string) {
		t.Helper()
		s.want(0, onHost(t, s.lab.Host(0), s.wrote, errand{argv: append([]string{filepath.Join(bin, "muster")}, args...), env: s.env}))
	}
	bundle := filepath.Join(t.TempDir(), "b.tar.gz")
	muster("bundle", "-o", bundle, s.runID)
	list := output(t, "tar", "tzf", bundle)
	for name, want := range map[string]int{"job.jsonl": 2, "report.txt": 2, "attempt_0/0/stdout.log": 2, "state.json": 1} {
		if got := strings.Count(list, "/"+name+"\n"); got != want {
			t.Errorf("%s is in it %d times, want %d:\n%s", name, got, want, list)
		}
	}
	muster("stop", s.runID)
	s.want(1, agents...)
}
