//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
)

// What the last rank of testdata/collectives.py does instead of coming, and what is said of it. `make test` plays what
// others do not: TestHangIsExplained has one that loops, TestHostsHang and TestHostsCollectivesDump have one that
// sleeps. With MUSTER_E2E_LONG all are played on one host and on many.
var absences = []struct{ how, says string }{
	{"loader", `3 ranks wait in all_reduce 11 of group dp \(1\.0 MiB float32\); rank 3 (on \S+ )?has not come: in load_batch \(collectives\.py:\d+\)`},
	{"lock", `3 ranks wait in all_reduce 11 of group dp \(1\.0 MiB float32\); rank 3 (on \S+ )?has not come: in load_batch \(collectives\.py:\d+\)`},
	{"stopped", `3 ranks wait in all_reduce 11 of group dp \(1\.0 MiB float32\); rank 3 (on \S+ )?is stopped, so nobody can tell how far it has come`},
	{"loop", `3 ranks wait in all_reduce 11 of group dp \(1\.0 MiB float32\); rank 3 (on \S+ )?has not come: in load_batch \(collectives\.py:\d+\)`},
	{"spins", `3 ranks wait in all_reduce 11 of group dp \(1\.0 MiB float32\); rank 3 (on \S+ )?has not come: in load_batch \(collectives\.py:\d+\)`},
	{"another", `rank 3 (on \S+ )?is in all_gather 11 of group dp where ranks 0-2 are in all_reduce`},
	{"order", `rank 3 (on \S+ )?is in all_reduce 11 of group tp where ranks 0-2 are in all_reduce 11 of group dp: they enter these in another order, and each waits for the other`},
}

// saysAbsence checks the first lines that an agent writes of a hang: the log's and the report's.
func saysAbsence(t *testing.T, j *job, says string) {
	t.Helper()
	for _, want := range []string{`what the workers did: ` + says + `\. Stacks: `, `(?m)^muster: rank 3 \(local_rank \d, pid \d+\).*: missed a deadline: --hang-timeout: ` + says} {
		if !regexp.MustCompile(want).MatchString(j.errs()) {
			t.Errorf("%s does not say %s:\n%s", j.l.name, want, j.errs())
		}
	}
}

// A rank that does not come to a collective, or comes to another one, is named in the first line,
// whatever the others do meanwhile.
func TestCollectives(t *testing.T) {
	t.Parallel()
	for _, tt := range absences {
		if tt.how != "lock" && os.Getenv("MUSTER_E2E_LONG") == "" {
			continue
		}
		t.Run(tt.how, func(t *testing.T) {
			t.Parallel()
			j := run(t, muster(t), withPython(t, "HOW="+tt.how, testproc.Unpaused), "--standalone --nproc-per-node 4 --hang-timeout 5 --autopsy-timeout 60", "testdata/collectives.py").want(1).noneLeft(0)
			saysAbsence(t, j, tt.says)
		})
	}
}

// Every host of two or four says the same, also one that does not look for hangs itself.
func TestHostsCollectives(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("testdata/collectives.py")
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range absences {
		if slices.Contains([]string{"loader", "lock", "loop"}, tt.how) && os.Getenv("MUSTER_E2E_LONG") == "" {
			continue
		}
		hosts := 2 + i%2*2
		t.Run(tt.how, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, hosts)
			s.env = withPython(t, testproc.Unpaused, "HOW="+tt.how).env
			backend(t, "c10d").prepare(s)
			s.program = []string{path}
			flags := fmt.Sprintf("--nnodes %d --nproc-per-node %d", hosts, 4/hosts)
			agents := []*job{s.start(0, flags+" --hang-timeout 5 --autopsy-timeout 60")}
			for host := 1; host < hosts; host++ {
				agents = append(agents, s.start(host, flags))
			}
			s.want(1, agents...)
			for _, j := range agents {
				saysAbsence(t, j, tt.says)
			}
		})
	}
}

// Nothing is claimed of a job that ends, nor does its script see anything.
func TestCollectivesUndisturbed(t *testing.T) {
	t.Parallel()
	own := t.TempDir()
	if err := os.WriteFile(filepath.Join(own, "sitecustomize.py"), []byte("print('own sitecustomize runs')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", own} {
		j := run(t, muster(t), withPython(t, "HOW=", "STEPS=200", "PYTHONPATH="+path, testproc.Unpaused), "--standalone --nproc-per-node 2 --hang-timeout 5", "testdata/collectives.py").want(0)
		want := "None"
		if path != "" {
			want = path
		}
		for rank := range 2 {
			if line := fmt.Sprintf("done %d %s []\n", rank, want); !strings.Contains(j.out(), line) {
				t.Errorf("no %q in\n%s", line, j.console())
			}
		}
		if ran := strings.Count(j.out(), "own sitecustomize runs"); ran != 2 && path != "" || strings.Contains(j.errs(), "hang") {
			t.Errorf("the worker's own sitecustomize runs %d times\n%s", ran, j.console())
		}
	}
}

// The same after gloo's own time limit, with which the workers that wait fail.
func TestCollectivesLimit(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("testdata/collectives.py")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, 2)
	s.env = withPython(t, testproc.Unpaused, "HOW=loader", "LIMIT=20").env
	backend(t, "c10d").prepare(s)
	s.program = []string{path}
	agents := s.startAll(2, "--nnodes 2 --nproc-per-node 2")
	s.want(1, agents...)
	want := regexp.MustCompile(`(?m)^muster: rank 3 \(local_rank 1, pid \d+\) on host host\d: did not take part in work 11 \(all_reduce of group dp\), for which ranks 0-2 waited (19|2\d) s: it had enqueued 10, and was in load_batch \(collectives\.py:\d+\)$`)
	for _, j := range agents {
		if !want.MatchString(j.errs()) {
			t.Errorf("%s does not say %s:\n%s", j.l.name, want, j.errs())
		}
	}
}

// gloo ends a rank that receives more than it expects. The report names the rank that differs from the others.
func TestJudgeHostsCollectivesSize(t *testing.T) {
	judge(t) // a worker that has no time to say what it began leaves no majority
	t.Parallel()
	path, err := filepath.Abs("testdata/collectives.py")
	if err != nil {
		t.Fatal(err)
	}
	for how, says := range map[string][]string{
		"large": {`began work 11 \(all_reduce of 4\.0 MiB float32 of group dp\) where ranks 0-1 began all_reduce of 1\.0 MiB float32; gloo ended rank 2, which received more than it expected$`},
		"small": {`.* doesn't match expected size`, `(?m)^ +hint +(: )?ranks 0-2 began work 11 \(all_reduce of 1\.0 MiB float32 of group dp\): this rank began a smaller one, or another$`},
	} {
		says[0] = `(?m)^muster: rank 3 \(local_rank \d, pid \d+\).*: ` + says[0]
		for _, hosts := range []int{1, 2, 4} {
			t.Run(how+itoa(hosts), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, hosts)
				s.env = withPython(t, testproc.Unpaused, "HOW="+how).env
				backend(t, "c10d").prepare(s)
				s.program = []string{path}
				agents := s.startAll(hosts, fmt.Sprintf("--nnodes %d --nproc-per-node %d", hosts, 4/hosts))
				s.want(1, agents...)
				for _, j := range agents {
					for _, want := range says {
						if !regexp.MustCompile(want).MatchString(j.errs()) {
							t.Errorf("%s does not say %s:\n%s", j.l.name, want, j.errs())
						}
					}
				}
			})
		}
	}
}

// muster dump says the same of a job that hangs, from each host. In `make test` each of two has two ranks.
func TestHostsCollectivesDump(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("testdata/collectives.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, hosts := range []int{1, 2, 4} {
		if hosts != 2 && os.Getenv("MUSTER_E2E_LONG") == "" {
			continue
		}
		t.Run(itoa(hosts), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, hosts)
			s.env = withPython(t, testproc.Unpaused, "HOW=loader").env
			backend(t, "c10d").prepare(s)
			s.program = []string{path}
			agents := s.startAll(hosts, fmt.Sprintf("--nnodes %d --nproc-per-node %d", hosts, 4/hosts))
			for host := range hosts {
				said, want := "", regexp.MustCompile(`^`+absences[0].says+`\. Stacks: `)
				for began := time.Now(); !want.MatchString(said); {
					j := onHost(t, s.lab.Host(host), s.wrote, errand{argv: []string{filepath.Join(bin, "muster"), "dump", s.runID}})
					<-j.ended
					if said = j.out(); time.Since(began) > patience {
						t.Fatalf("host %d says:\n%s", host, j.console())
					}
				}
			}
			s.command(0, 0, "stop", s.runID)
			s.want(1, agents...)
		})
	}
}
