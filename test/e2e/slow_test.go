//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A rank of the second host that makes the others wait is named on each host when that begins and when it ends, and the
// report has what it cost. It is late by itself, or by a limit of CPU time.
func TestHostsSlowRank(t *testing.T) {
	if os.Getenv("MUSTER_E2E_LONG") == "" {
		t.Skip("it takes more than two minutes; MUSTER_E2E_LONG=1 runs it")
	}
	t.Parallel()
	t.Run("its own", func(t *testing.T) {
		t.Parallel()
		slowRank(t)
	})
	t.Run("CPU quota", func(t *testing.T) {
		t.Parallel()
		slowRank(t, "QUOTA="+cpuGroup(t, 1_000, 10_000))
	})
}

func slowRank(t *testing.T, env ...string) {
	path, err := filepath.Abs("testdata/slow.py")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, 2)
	s.env = withPython(t, append(env, testproc.Unpaused)...).env
	backend(t, "c10d").prepare(s)
	s.program = []string{path}
	logs := t.TempDir()
	agents := s.startAll(2, "--nnodes 2 --nproc-per-node 2 --log-dir "+logs)
	s.want(0, agents...)
	want := `(?s)^[^\n]*rank 3 on \S+ comes last in \d+ % of the last \d+ steps; the others wait \d+ ms of \d+ ms a step for it.*\n[^\n]*the others no longer wait for rank 3 on `
	for _, j := range agents {
		got := strings.Join(grep(j.errs(), " last in | no longer wait "), "\n")
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s says %q of\n%s", j.l.name, got, j.errs())
		}
		t.Log(got)
	}
	report, err := exec.Command(filepath.Join(bin, "muster"), "report", "--time", logs).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`4 workers on 2 hosts in 1 run`, `\n  first step  `, `\n  waiting for a slow rank  `, `\n  start and imports  `, `\n  slow: rank 3 on host1\n`} {
		if !regexp.MustCompile(want).Match(report) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	t.Logf("%s", report)
}

// cpuGroup makes a control group of version 1 or 2 whose processes have so many microseconds of CPU time in each period.
func cpuGroup(t *testing.T, quota, period int) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	groups, err2 := os.ReadFile("/proc/self/cgroup")
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	paths := cgroup.ParsePaths(mounts, groups)
	root, files := paths.UnifiedRoot, []string{"cpu.max", fmt.Sprint(quota, period)}
	if paths.CPUV1Root != "" {
		root, files = paths.CPUV1Root, []string{"cpu.cfs_period_us", itoa(period), "cpu.cfs_quota_us", itoa(quota)}
	} else if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
		t.Skip("needs the CPU controller of control groups: ", err)
	}
	group, err := os.MkdirTemp(root, "muster-e2e-")
	if err != nil {
		t.Skip("needs the right to make a control group: ", err)
	}
	t.Cleanup(func() { os.Remove(group) })
	for ; len(files) > 0; files = files[2:] {
		if err := os.WriteFile(filepath.Join(group, files[0]), []byte(files[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	return group
}

// What workers without heartbeats have done since their last step is lost with a failure, and part of its price. All
// accounts together are the wall clock.
func TestHostsWorkLost(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("testdata/lost.py")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, 2)
	s.env = withPython(t, testproc.Unpaused).env
	backend(t, "c10d").prepare(s)
	s.program = []string{path}
	logs := t.TempDir()
	s.want(0, s.startAll(2, "--nnodes 2 --nproc-per-node 2 --max-restarts 1 --log-dir "+logs)...)
	out, err := exec.Command(filepath.Join(bin, "muster"), "report", "--time", "--json", logs).Output()
	var r accounts.Report
	if err = errors.Join(err, json.Unmarshal(out, &r)); err != nil || len(r.Runs) != 2 || len(r.Prices) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, run := range r.Runs {
		for i, spent := range run.Workers {
			if wall := run.Ended.Sub(run.Started).Milliseconds(); spent.Sum() != wall || spent[accounts.Lost] < 500 || spent[accounts.Steps] == 0 {
				t.Errorf("%s, worker %d: %d ms of %d, in %v", run.Host, i, spent.Sum(), wall, spent)
			}
		}
	}
	if p := r.Prices[1]; p.Workers != 4 || p.Spent[accounts.Lost] != r.Spent[accounts.Lost] || !strings.Contains(p.Cause, "loss is NaN") {
		t.Errorf("the price of the failure is %+v", p)
	}
}
