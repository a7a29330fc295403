package prometheus

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/timer"
)

// live is an agent with two timers and one worker: this process.
type live struct{}

func (live) Job() *agent.Job {
	return &agent.Job{RunID: `of "job"`, Role: "trainer", Host: "h.example", LocalWorldSize: 2, MaxRestarts: 3}
}

func (live) Workers() []agent.Worker {
	return []agent.Worker{{Rank: 4, LocalRank: 0, PID: os.Getpid()}, {Rank: 5, LocalRank: 1, PID: 1 << 30}}
}

func (live) TimerStats() (timer.Stats, uint64) {
	return timer.Stats{Timers: 3, Expired: 2, Killed: 1}, 4
}

func (live) GPUs(time.Duration) []agent.GPU {
	percent := 97
	return []agent.GPU{{Index: 6, Percent: &percent, UsedBytes: 61 << 30, TotalBytes: 80 << 30}}
}

// newJob returns a job's metrics, and what tells it of the agent's events, which come
// after each other.
func newJob() (j *metrics.Job, tell func(after time.Duration, what any)) {
	j = &metrics.Job{}
	j.Watch(live{})
	e := agent.Event{Time: time.Now(), Job: live{}.Job(), Round: &rendezvous.Info{WorldSize: 2}, Ranks: rendezvous.Ranks{WorldSize: 4}}
	return j, func(after time.Duration, what any) {
		if _, ok := what.(agent.RestartCounted); ok {
			e.Restarts++
		}
		e.Time, e.What = e.Time.Add(after), what
		switch w := what.(type) { // steps begin now, too
		case agent.RanksAssigned:
			w.Began, e.What = e.Time.Add(-after), w
		case agent.WorkersStarted:
			w.Began, e.What = e.Time.Add(-after), w
		}
		j.Observe(e)
	}
}

// ours leaves out what is different from run to run.
func ours(all map[string]float64) map[string]float64 {
	for key := range all {
		if strings.HasPrefix(key, "muster_build_info") {
			delete(all, key)
		}
	}
	return all
}

// What the agent publishes in a run with one restart and one rejoin becomes these
// figures, and neither Prometheus' parser nor its linter has anything to say.
func TestJob(t *testing.T) {
	r, tell := newJob()
	check := func(want map[string]float64) {
		t.Helper()
		scrape := text(t, r)
		lint(t, scrape)
		got := ours(values(t, scrape))
		for key, v := range want {
			if g, ok := got[key]; !ok || g != v {
				t.Errorf("%s is %v (%v), want %v", key, g, ok, v)
			}
		}
		states := 0.0
		for key, v := range got {
			if strings.HasPrefix(key, "muster_group_state{") {
				states += v
			}
		}
		if states != 1 {
			t.Errorf("the group is in %v states", states)
		}
	}
	check(map[string]float64{
		"muster_group_state{state=INIT}": 1, "muster_round": -1, "muster_restarts_remaining": 3, "muster_restarts_total": 0,
		"muster_local_world_size": 2, "muster_worker_exits_total{cause=oom}": 0, "muster_rendezvous_duration_seconds": 0,
		`muster_job_info{run_id=of "job",role=trainer,host=h.example}`: 1,
	})
	tell(0, agent.Joining{})
	tell(1500*time.Microsecond, agent.RanksAssigned{})
	tell(time.Millisecond, agent.WorkersStarted{})
	tell(0, agent.Decided{State: agent.Healthy})
	check(map[string]float64{
		"muster_group_state{state=HEALTHY}": 1, "muster_group_state{state=INIT}": 0, "muster_round": 0, "muster_nodes": 2, "muster_world_size": 4,
	})
	tell(0, agent.Decided{State: agent.Stopped, Again: true, Since: time.Now()})
	tell(2*time.Second, agent.WorkersStopped{Took: 2 * time.Second})
	tell(0, agent.AttemptEnded{Causes: []failure.Cause{failure.CauseOOM, failure.CauseStopped, "no such"}})
	tell(0, agent.RestartCounted{})
	tell(0, agent.Joining{})
	tell(time.Second, agent.Joined{Step: agent.Step{Err: errors.New("x")}})
	tell(0, agent.Joining{})
	tell(700*time.Second, agent.RanksAssigned{})
	tell(0, agent.WorkersStarted{})
	tell(0, agent.Decided{State: agent.Stopped, Rejoining: true})
	tell(0, agent.Decided{State: agent.Unknown})
	check(map[string]float64{
		"muster_group_state{state=UNKNOWN}":                              1,
		"muster_restarts_remaining":                                      2,
		"muster_restarts_total":                                          1,
		"muster_rejoins_total":                                           1,
		"muster_worker_exits_total{cause=oom}":                           1,
		"muster_worker_exits_total{cause=stopped}":                       1,
		"muster_worker_exits_total{cause=timer}":                         0,
		"muster_step_failures_total{step=rendezvous}":                    1,
		"muster_step_failures_total{step=initialization}":                1,
		"muster_step_failures_total{step=worker_start}":                  0,
		"muster_rendezvous_duration_seconds":                             3,
		"muster_rank_assignment_duration_seconds":                        2,
		"muster_worker_start_duration_seconds":                           2,
		"muster_worker_stop_duration_seconds":                            1,
		"muster_initialization_duration_seconds":                         3,
		"muster_restart_duration_seconds":                                1,
		"muster_worker_restarts{rank=4,local_rank=0}":                    1,
		"muster_timers_live":                                             3,
		"muster_worker_gpu_utilization_ratio{rank=4,local_rank=0,gpu=6}": 0.97,
		"muster_worker_gpu_memory_used_bytes{rank=4,local_rank=0,gpu=6}": 61 << 30,
		"muster_worker_gpu_memory_bytes{rank=4,local_rank=0,gpu=6}":      80 << 30,
		"muster_timers_expired_total":                                    2,
		"muster_timer_kills_total":                                       1,
		"muster_timer_malformed_lines_total":                             4,
	})
	h := parse(t, text(t, r))["muster_rendezvous_duration_seconds"].Metric[0].Histogram
	if got, want := h.GetSampleSum(), 701.0015; got != want {
		t.Errorf("the rendezvous took %v s, want %v: exact, not in whole milliseconds", got, want)
	}
}

// The names of all metrics, which dashboards rely on.
func TestJobNames(t *testing.T) {
	r, _ := newJob()
	var got strings.Builder
	for line := range strings.Lines(text(t, r)) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			got.WriteString(rest)
		}
	}
	const path = "testdata/names.txt"
	if os.Getenv("MUSTER_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got (MUSTER_UPDATE=1 writes %s):\n%s", path, diff)
	}
}

// What the workers use is plausible, and a worker that is gone
// has no figures.
func TestProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	r, _ := newJob()
	first := values(t, text(t, r))
	for _, tt := range []struct {
		name        string
		least, most float64
	}{
		{"muster_worker_cpu_seconds_total{rank=4,local_rank=0}", 1e-4, 1e4},
		{"muster_worker_resident_memory_bytes{rank=4,local_rank=0}", 1 << 20, 1 << 40},
	} {
		if v, ok := first[tt.name]; !ok || v < tt.least || v > tt.most {
			t.Errorf("%s is %v (%v), want %v to %v", tt.name, v, ok, tt.least, tt.most)
		}
	}
	for key := range first {
		if strings.HasPrefix(key, "muster_worker_") && strings.Contains(key, "rank=5") {
			t.Errorf("%s of a worker that is gone", key)
		}
		if strings.HasPrefix(key, "muster_build_info{") && !strings.Contains(key, "goversion="+runtime.Version()) {
			t.Errorf("build info is %s", key)
		}
	}
}
