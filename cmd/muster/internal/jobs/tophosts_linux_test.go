package jobs

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health/jobstate"
)

// onHost is topState as the agent of another host has it.
func onHost(rank int, name string) *jobstate.State {
	s := topState()
	s.Host = jobstate.Host{Name: name, GroupRank: rank, Workers: 8}
	for i := range s.Workers {
		s.Workers[i].Rank += 8 * rank
		s.Workers[i].Host, s.Workers[i].GroupRank = name, rank
	}
	return s
}

// at are agents by their addresses.
func at(addrs ...string) (jobs []job) {
	for _, addr := range addrs {
		jobs = append(jobs, job{addr: addr})
	}
	return jobs
}

// hostNames are the hosts that have answered.
func hostNames(states []*jobstate.State) []string {
	var names []string
	for _, s := range states {
		names = append(names, s.Host.Name)
	}
	return names
}

// wantProblems looks for what must be said of those that are missing.
func wantProblems(t *testing.T, problems []string, want ...string) {
	t.Helper()
	if len(problems) != len(want) {
		t.Fatalf("problems %q, want %q", problems, want)
	}
	for i := range want {
		if !strings.Contains(problems[i], want[i]) {
			t.Errorf("problems %q, want %q", problems, want)
		}
	}
}

// Several agents are asked; one that is gone or of another job has no part.
func TestTopSource(t *testing.T) {
	stranger := onHost(2, "n2")
	stranger.Job.RunID = "other"
	n1, n0 := serve(t, "127.0.0.1:0", fixedJob{onHost(1, "n1")}), serve(t, "127.0.0.1:0", fixedJob{onHost(0, "n0")})
	other, n3 := serve(t, "127.0.0.1:0", fixedJob{stranger}), serve(t, "127.0.0.1:0", fixedJob{onHost(3, "n3")})
	const gone = "unix:/nothing/here"

	states, problems := askTop(t.Context(), at(gone, n3, n1, other, n0, "localhost"+n1[strings.LastIndex(n1, ":"):]))
	if diff := cmp.Diff([]string{"n3", "n1", "n0", "n1"}, hostNames(states)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	wantProblems(t, problems, "ask the agent at "+gone, "the agent at "+other+" is of another job, other")

	states, problems = askTop(t.Context(), at(gone, gone+"/either"))
	if wantProblems(t, problems, gone, gone+"/either"); states != nil {
		t.Errorf("%+v", states)
	}
}

// A soonJob does not know its state at first.
type soonJob struct {
	fixedJob
	asked *atomic.Int32
}

func (j soonJob) State(ctx context.Context) *jobstate.State {
	if j.asked.Add(1) == 1 {
		return nil
	}
	return j.fixedJob.State(ctx)
}

// An agent that does not know its state yet is asked again.
func TestStateComesSoon(t *testing.T) {
	j := job{addr: serve(t, "127.0.0.1:0", soonJob{fixedJob{onHost(0, "n0")}, new(atomic.Int32)})}
	if j.fetch(t.Context(), false); j.state == nil {
		t.Error(j.err)
	}
}

// Workers of all hosts stand in one table, sorted by rank.
func TestTopHosts(t *testing.T) {
	v := &topView{}
	v.take([]*jobstate.State{onHost(0, "n0"), onHost(1, "n\x1b[1m1")}, []string{"n2 is away", "b", "c", "d", "e", "f"})
	got := shown(v, 100)
	for _, want := range []string{
		"2 hosts: n0* (8) n1 UNHEALTHY (8)\n", "n2 is away\n", "and 2 more hosts are missing\n",
		"  RANK  HOST  ", "\n  0     n0    ", "\n  12    n1    ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if at := strings.Index(got, "\n  7     n0 "); at < 0 || !strings.HasPrefix(got[at+1+strings.Index(got[at+1:], "\n"):], "\n  8     n1 ") {
		t.Errorf("rank 8 does not follow rank 7 in\n%s", got)
	}
	v.take(nil, []string{"no answer"})
	if len(v.state.Workers) != 16 || len(v.problems) != 1 {
		t.Errorf("without an answer %d workers are left, %q", len(v.state.Workers), v.problems)
	}
	v.take([]*jobstate.State{topState()}, nil)
	if len(v.state.Workers) != 8 || len(v.problems) != 0 {
		t.Errorf("%d workers, %q", len(v.state.Workers), v.problems)
	}
}
