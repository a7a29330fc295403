//go:build linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// output is what a command of the system prints.
func output(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
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
