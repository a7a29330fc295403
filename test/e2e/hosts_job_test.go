//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
			if all := s.command(spare, 0, "logs", "--collapse", "--stream", "stderr", agent); all.out() != "[0-5 err]: problem\n" {
				t.Errorf("collapsed stderr of all ranks is %q", all.out())
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
			type psJob struct {
				PID, Hosts int
				Ranks      []int
			}
			var ps struct{ Jobs []psJob }
			if err := json.Unmarshal([]byte(s.command(spare, 0, "ps", "--json").out()), &ps); err != nil {
				t.Error(err)
			}
			if !slices.ContainsFunc(ps.Jobs, func(j psJob) bool {
				return fmt.Sprint(j.PID) == agent && j.Hosts == 3 && slices.Equal(j.Ranks, []int{0, 1, 2, 3, 4, 5})
			}) {
				t.Errorf("muster ps: %+v", ps)
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
			if list := output(t, "tar", "tzf", bundle); !strings.Contains(list, "/state.json\n") || !strings.Contains(list, "/job.jsonl\n") {
				t.Error(list)
			}
			if got := s.command(spare, 0, "stop", agent).out(); !strings.Contains(got, "on 4 hosts\n") {
				t.Errorf("muster stop: %q", got)
			}
			s.want(1, append(agents, outside)...)
			s.want(0, f)
			f.says("muster logs: the agent was told to stop: ")
			asked := 0
			for _, j := range agents {
				if strings.Contains(j.errs(), "muster stop: the job is stopped by=host") {
					asked++
				} else {
					j.says("another node has ended the job") // one that was asked before
				}
			}
			if asked == 0 {
				t.Error("no host was asked to leave")
			}
		})
	}
}

// waitingHost is the host that has no workers and is none of the backend's.
func (s *site) waitingHost() int { return len(s.lab.Hosts()) - 1 }

// A rank that hangs on one of several hosts is named in the first line of what each says,
// whoever holds the rendezvous. TestHangOverHosts has an agent of torchrun.
func TestHostsHang(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		backend        string
		hosts, workers int
	}{{"etcd", 3, 1}, {"quorum", 3, 1}} { // TestHangOverHosts has c10d
		t.Run(tt.backend, func(t *testing.T) {
			t.Parallel()
			hostsHang(t, tt.backend, tt.hosts, tt.workers, nil)
		})
	}
}

// The same with eight ranks each, and with an agent of torchrun.
func TestJudgeHostsHang(t *testing.T) {
	other := judge(t)
	t.Run("beside torchrun", func(t *testing.T) { hostsHang(t, "c10d", 4, 2, &other) })
	for _, name := range []string{"c10d", "etcd", "quorum"} {
		t.Run(name, func(t *testing.T) { hostsHang(t, name, 4, 2, nil) })
	}
}

// hostsHang lets the first rank of the third host hang. Host 1 may have an agent of another
// launcher, which takes no part in the search.
func hostsHang(t *testing.T, name string, hosts, workers int, other *launcher) {
	c := backend(t, name)
	s := newSite(t, hosts+c.hosts)
	rank, last, known := 2*workers, hosts-1, hosts*workers-1
	s.env = withPython(t, testproc.Unpaused, fmt.Sprint("ODD=", rank)).env
	c.prepare(s)
	path, err := filepath.Abs("testdata/hang.py")
	if err != nil {
		t.Fatal(err)
	}
	s.program = []string{path}
	flags := fmt.Sprintf("--nnodes %d --nproc-per-node %d", hosts, workers)
	var agents []*job
	for i := range hosts {
		switch {
		case i == 1 && other != nil:
			s.startOf(*other, i, flags+" --local-addr "+s.lab.Host(i).Addr)
			known -= workers
		case i == last: // notices what others say
			agents = append(agents, s.start(i, flags))
		default:
			agents = append(agents, s.start(i, flags+" --hang-timeout 8 --autopsy-timeout 60"))
		}
	}
	s.want(1, s.agents...)
	odd := regexp.MustCompile(fmt.Sprintf(`what the workers did: .* waits? in all_reduce 2 of the default group \(16 B float32\); rank %d on host2 has not come: in load_batch \(hang\.py:\d+\)\. Stacks: %d ranks in all_reduce \(distributed_c10d\.py:\d+\), rank %d on host2 in load_batch \(hang\.py:\d+\)`, rank, known, rank))
	for _, j := range agents {
		if !odd.MatchString(j.errs()) {
			t.Errorf("%s does not say who differs:\n%s", j.l.name, j.errs())
		}
		if !strings.Contains(j.errs(), fmt.Sprintf("\nmuster: rank %d (local_rank 0, pid ", rank)) || !strings.Contains(j.errs(), " has not come: in load_batch (hang.py:") {
			t.Errorf("%s does not blame rank %d:\n%s", j.l.name, rank, j.errs())
		}
		if other != nil && !strings.Contains(j.errs(), "nothing known of group rank 1 (group rank 1 is an agent of torchrun, which takes no calls)") {
			t.Errorf("%s does not say what it cannot know:\n%s", j.l.name, j.errs())
		}
	}
}

// The host of the worker that fails loses its power once another one has heard of it: the traceback
// is in the report of the others, also where the host held the rendezvous.
func TestHostsReportSurvives(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c10d", "quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reportSurvives(t, name, func(s *site, _ *job, others []*job) {
				for _, j := range others {
					s.untilSays(j, "is told to stop")
				}
			})
		})
	}
}

// The same a hundred times, the power lost a tenth of a second after the worker raised.
func TestJudgeReportSurvives(t *testing.T) {
	judge(t)
	for i := range 100 {
		name := []string{"c10d", "quorum"}[i%2]
		t.Run(fmt.Sprint(name, i), func(t *testing.T) {
			reportSurvives(t, name, func(s *site, zero *job, _ []*job) {
				s.untilSays(zero, "raises\n")
				time.Sleep(100 * time.Millisecond)
			})
		})
	}
}

// reportSurvives lets rank 0 fail and cuts the power of its host when failed returns.
func reportSurvives(t *testing.T, name string, failed func(s *site, zero *job, others []*job)) {
	c := backend(t, name)
	s := newSite(t, 3)
	s.env = withPython(t).env
	c.prepare(s)
	ready := filepath.Join(t.TempDir(), "ready")
	s.program = []string{script(t, "dies.py", `
import os, signal, sys, time
if os.environ["RANK"] == "0":
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    sys.stderr.write("filler\n" * 9000)
    print("raises", flush=True)
    raise ValueError("the last straw")
def stop(*_):
    print("is told to stop", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print("may be stopped", flush=True)
time.sleep(1000)
`), ready}
	dir := t.TempDir()
	agents := s.startAll(3, "--nnodes 3 --redirects 2 --log-dir "+dir)
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
		s.untilSays(j, "may be stopped")
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failed(s, zero, others)
	s.lab.Host(s.hostOf(zero)).PowerOff()
	s.want(1, others...)
	kept, err := filepath.Glob(filepath.Join(dir, "*", "attempt_0", "report.json"))
	if err != nil || len(kept) < 2 {
		t.Fatalf("reports at %q, %v", kept, err)
	}
	for _, path := range kept {
		var report struct {
			Failures []struct {
				Rank      int
				Traceback string
			}
		}
		readJSON(t, path, &report)
		if len(report.Failures) == 0 || report.Failures[0].Rank != 0 || !strings.Contains(report.Failures[0].Traceback, `raise ValueError("the last straw")`) {
			t.Errorf("%+v", report)
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
