//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
)

// pidOf is what an agent calls itself in its log.
func (s *site) pidOf(j *job) string {
	s.t.Helper()
	s.untilSays(j, " muster/")
	return regexp.MustCompile(`[IWE]\d{4} \S+ (\d+) muster/`).FindStringSubmatch(j.errs())[1]
}

// command runs `muster NAME ...` on a host to its end.
func (s *site) command(host, status int, args ...string) *job {
	s.t.Helper()
	j := onHost(s.t, s.lab.Host(host), s.wrote, errand{argv: append([]string{filepath.Join(bin, "muster")}, args...)})
	s.want(status, j)
	return j
}

// A job on three hosts is one job: its lines, workers and stacks are seen, and it is signalled
// and stopped, from a host that has no workers.
func TestHostsOneJob(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c10d", "etcd", "quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := backend(t, name)
			s := newSite(t, 4+c.hosts)
			c.prepare(s)
			s.program = []string{"sh", "-c", `for i in 1 2 3; do echo "rank $RANK line $i"; done; echo problem >&2; exec sleep 1000`}
			spare := s.waitingHost()
			flags := fmt.Sprintf("--nnodes 3 --nproc-per-node 2 --no-python --tee 3 --log-dir %s", t.TempDir())
			agents := s.startAll(3, flags)
			var want []string
			for rank := range 6 {
				for line := 1; line <= 3; line++ {
					want = append(want, fmt.Sprintf("[%d]: rank %d line %d", rank, rank, line))
				}
			}
			for _, j := range agents {
				s.untilSays(j, " line 3\n")
			}
			outside := s.start(spare, flags)
			s.untilSays(outside, "waits as a spare")
			agent := s.pidOf(outside)
			f := onHost(t, s.lab.Host(spare), s.wrote, errand{argv: []string{filepath.Join(bin, "muster"), "logs", "-f", "--stream", "stdout", "--prefix", agent}})
			for rank := range 6 {
				s.untilSays(f, fmt.Sprintf("rank %d line 3\n", rank))
			}
			logs := s.command(spare, 0, "logs", "--stream", "stdout", "--prefix", agent)
			for _, out := range []string{logs.out(), f.out()} {
				lines := strings.Split(strings.TrimSpace(out), "\n")
				slices.Sort(lines)
				if diff := cmp.Diff(want, lines); diff != "" {
					t.Errorf("muster logs, -want +got:\n%s", diff)
				}
			}
			if one := s.command(spare, 0, "logs", "--rank", "4", "--stream", "stderr", agent); one.out() != "problem\n" {
				t.Errorf("stderr of rank 4 is %q", one.out())
			}
			var state struct {
				Workers []struct {
					Rank int
					Host string
				}
				Hosts []struct{ Name, Problem string }
			}
			if err := json.Unmarshal([]byte(s.command(spare, 0, "top", "--json", agent).out()), &state); err != nil || len(state.Workers) != 6 || len(state.Hosts) != 3 {
				t.Errorf("muster top: %v, %+v", err, state)
			}
			for i, w := range state.Workers {
				if w.Rank != i || w.Host != state.Hosts[i/2].Name || state.Hosts[i/2].Problem != "" {
					t.Errorf("worker %d: %+v of %+v", i, w, state.Hosts)
				}
			}
			if got := s.command(spare, 0, "signal", "CONT", agent).out(); strings.Count(got, "rank ") != 6 {
				t.Errorf("muster signal: %q", got)
			}
			if got := s.command(spare, 0, "signal", "CONT", "--rank", "5", agent).out(); strings.Count(got, "rank ") != 1 || !strings.Contains(got, "rank 5 (pid ") {
				t.Errorf("muster signal --rank 5: %q", got)
			}
			if got := s.command(spare, 0, "dump", agent).out(); !strings.Contains(got, "no Python stacks of ranks 0-5:") {
				t.Errorf("muster dump: %q", got)
			}
			bundle := filepath.Join(t.TempDir(), "b.tar.gz") // of a host that waits: what there is
			s.command(spare, 0, "bundle", "-o", bundle, agent)
			if list := output(t, "tar", "tzf", bundle); !strings.Contains(list, "/state.json\n") || strings.Contains(list, "/report.txt\n") {
				t.Error(list)
			}
			if got := s.command(spare, 0, "stop", agent).out(); !strings.Contains(got, "on 4 hosts\n") {
				t.Errorf("muster stop: %q", got)
			}
			s.want(1, append(agents, outside)...)
			s.want(0, f)
			f.says("muster logs: the agent was told to stop: ")
			for _, j := range agents {
				j.says("muster stop: this host is asked to leave the job by=host")
			}
		})
	}
}

// waitingHost is the host that has no workers and is none of the backend's.
func (s *site) waitingHost() int { return len(s.lab.Hosts()) - 1 }

// A rank that hangs on one of several hosts is named in the first line of what each says,
// whoever holds the rendezvous.
func TestHostsHang(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		backend        string // with torchrun: TestHangOverHosts
		hosts, workers int
	}{{"c10d", 4, 2}, {"etcd", 3, 1}, {"quorum", 3, 1}} {
		t.Run(tt.backend, func(t *testing.T) {
			t.Parallel()
			c := backend(t, tt.backend)
			s := newSite(t, tt.hosts+c.hosts)
			rank, last := 2*tt.workers, tt.hosts-1
			s.env = withPython(t, testproc.Unpaused, fmt.Sprint("ODD=", rank)).env
			c.prepare(s)
			path, err := filepath.Abs("testdata/hang.py")
			if err != nil {
				t.Fatal(err)
			}
			s.program = []string{path}
			flags := fmt.Sprintf("--nnodes %d --nproc-per-node %d", tt.hosts, tt.workers)
			agents := append(s.startAll(last, flags+" --hang-timeout 8"), s.start(last, flags)) // whose hang others notice
			s.want(1, agents...)
			odd := regexp.MustCompile(fmt.Sprintf(`what the workers did: %d ranks in all_reduce \(distributed_c10d\.py:\d+\), rank %d on host\d in load_batch \(hang\.py:\d+\)`, tt.hosts*tt.workers-1, rank))
			for i, j := range agents {
				if !odd.MatchString(j.errs()) {
					t.Errorf("host %d does not say who differs:\n%s", i, j.errs())
				}
				if !strings.Contains(j.errs(), fmt.Sprintf("\nmuster: rank %d (local_rank 0, pid ", rank)) || !strings.Contains(j.errs(), "it differs from the ranks that wait") {
					t.Errorf("host %d does not blame rank %d:\n%s", i, rank, j.errs())
				}
			}
		})
	}
}

// The host of the worker that fails loses its power once another one has heard of it: traceback
// and last words are in the report and the logs of the others, also where the host held the
// rendezvous.
func TestHostsLastWords(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c10d", "quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := backend(t, name)
			s := newSite(t, 3)
			s.env = withPython(t).env
			c.prepare(s)
			s.program = []string{script(t, "dies.py", `
import os, sys, time
if os.environ["RANK"] == "0":
    sys.stderr.write("filler\n" * 9000)
    raise ValueError("the last straw")
time.sleep(1000)
`)}
			dir := t.TempDir()
			agents := s.startAll(3, "--nnodes 3 --redirects 3 --log-dir "+dir)
			var zero *job
			var others []*job
			for _, j := range agents {
				if s.untilSays(j, "rendezvous complete"); strings.Contains(j.errs(), " node=0 nodes=3") {
					zero = j
				} else {
					others = append(others, j)
				}
			}
			for _, j := range others {
				s.untilSays(j, "is kept here, too")
			}
			s.lab.Host(s.hostOf(zero)).PowerOff()
			s.want(1, others...)
			kept, err := filepath.Glob(filepath.Join(dir, "*", "attempt_0", "stderr_of_rank_0.log"))
			if err != nil || len(kept) != 2 {
				t.Fatalf("kept at %q, %v", kept, err)
			}
			for _, path := range kept {
				if text := contents(t, path); len(text) < 60_000 || !strings.HasSuffix(text, "ValueError: the last straw\n") {
					t.Errorf("%s has %d bytes, at the end %q", path, len(text), text[max(0, len(text)-100):])
				}
				var report struct {
					Failures []struct {
						Rank      int
						Traceback string
					}
				}
				readJSON(t, filepath.Join(filepath.Dir(path), "report.json"), &report)
				if len(report.Failures) == 0 || report.Failures[0].Rank != 0 || !strings.Contains(report.Failures[0].Traceback, `raise ValueError("the last straw")`) {
					t.Errorf("%+v", report)
				}
			}
		})
	}
}

// The lines of all hosts come out on the console of the host with rank 0, each once and in its
// worker's order, and on no other; also those of a worker that fails, and of the attempt after it.
func TestHostsGather(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c10d", "etcd", "quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lines = 3000
			c := backend(t, name)
			s := newSite(t, 3+c.hosts)
			c.prepare(s)
			s.program = []string{"sh", "-c", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "$TORCHELASTIC_RESTART_COUNT $i"; i=$((i+1)); done; exit $((1 - TORCHELASTIC_RESTART_COUNT))`, lines)}
			agents := s.startAll(3, "--nnodes 3 --nproc-per-node 2 --no-python --max-restarts 1 --tee 3 --gather console")
			s.want(0, agents...)
			consoles := 0
			for _, j := range agents {
				if j.out() == "" {
					continue
				}
				consoles++
				next := map[string]int{}
				for line := range strings.Lines(j.out()) {
					var rank, attempt, n int
					var host string
					if _, err := fmt.Sscanf(strings.Replace(line, " attempt_0]:", "]:", 1), "[%d %s %d", &rank, &host, &n); err != nil {
						t.Fatalf("%q: %v", line, err)
					}
					_, _ = fmt.Sscanf(host[strings.Index(host, "]:")+2:], "%d", &attempt)
					worker := fmt.Sprint(rank, " in attempt ", attempt)
					if next[worker] != n {
						t.Fatalf("rank %s: line %d, want %d", worker, n, next[worker])
					}
					next[worker]++
				}
				for rank := range 6 {
					if n := next[fmt.Sprint(rank, " in attempt 1")]; n != lines {
						t.Errorf("rank %d wrote %d lines in the attempt that succeeded, want %d", rank, n, lines)
					}
				}
				j.saysNot("gathered lines are missing")
			}
			if consoles != 1 {
				t.Errorf("%d hosts have printed lines", consoles)
			}
		})
	}
}
