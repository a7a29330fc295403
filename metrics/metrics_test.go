package metrics_test

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/slow"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/timer"
)

// A recorder keeps "group: name=value" and the time.
type recorder struct {
	lines []string
	times []time.Time
}

func (r *recorder) Emit(m metrics.Metric) {
	var b bytes.Buffer
	metrics.Console(&b).Emit(m)
	_, line, _ := strings.Cut(strings.TrimSuffix(b.String(), "\n"), "]")
	r.lines, r.times = append(r.lines, line), append(r.times, m.Time)
}

// names returns the distinct metrics of a golden run, without values that
// depend on the clock.
func names(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for l := range strings.Lines(string(b)) {
		all = append(all, strings.Replace(strings.TrimSpace(strings.TrimPrefix(l, "[<UNIX_FLOAT>]")), "<MS>", "0", 1))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Source: golden/metrics.
func TestNames(t *testing.T) {
	now := time.Now()
	step := agent.Step{Began: now}
	start := []any{agent.Joining{}, agent.RanksAssigned{Step: step}, agent.WorkersStarted{Step: step}}
	finished := func(state agent.State) any { return agent.Finished{Step: step, Result: &agent.Result{State: state}} }
	for _, tt := range []struct {
		golden      string
		maxRestarts int
		whats       []any
	}{
		{"success.txt", 0, slices.Concat(start, []any{agent.Decided{Seen: agent.Succeeded}, finished(agent.Succeeded)})},
		{"restart_then_fail.txt", 1, slices.Concat(start,
			[]any{agent.Decided{Seen: agent.Healthy}, agent.Decided{Seen: agent.Failed, Again: true, Since: now}, agent.WorkersStopped{}}, start,
			[]any{agent.Decided{Seen: agent.Healthy}, agent.Decided{Seen: agent.Failed}, agent.WorkersStopped{}, finished(agent.Failed)})},
	} {
		r := &recorder{}
		observe := metrics.Observer(nil, r)
		used := 0
		for _, what := range tt.whats {
			observe(agent.Event{Time: now, Job: &agent.Job{Role: "default", MaxRestarts: tt.maxRestarts}, Restarts: used, What: what})
			if d, ok := what.(agent.Decided); ok && d.Again {
				used++
			}
		}
		slices.Sort(r.lines)
		if diff := cmp.Diff(names(t, "testdata/torchrun-2.15/"+tt.golden), slices.Compact(r.lines)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.golden, diff)
		}
	}
}

// Another host may have had more restarts than this one allows.
func TestMoreRestartsThanAllowed(t *testing.T) {
	r, j := &recorder{}, &metrics.Job{}
	for _, observe := range []func(agent.Event){metrics.Observer(r), j.Observe} {
		for _, what := range []any{agent.Decided{Seen: agent.Healthy}, agent.Finished{Result: &agent.Result{State: agent.Succeeded}}} {
			observe(agent.Event{Job: &agent.Job{Role: "r", MaxRestarts: 1}, Restarts: 3, What: what})
		}
	}
	for _, want := range []string{"[torchelastic]: workers.r.remaining_restarts=0", "[torchelastic]: workers.r.flakiness=50"} {
		if !slices.Contains(r.lines, want) {
			t.Errorf("%q lacks %q", r.lines, want)
		}
	}
	var b bytes.Buffer
	if err := j.WritePrometheus(&b); err != nil || !strings.Contains(b.String(), "\nmuster_restarts_remaining 0\n") {
		t.Errorf("%v, %s", err, &b)
	}
}

// What warm starts cost, where there are any.
func TestWarm(t *testing.T) {
	scrape := func(j *metrics.Job) string {
		j.Watch(nobody{})
		var b strings.Builder
		if err := j.WritePrometheus(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if s := scrape(&metrics.Job{}); strings.Contains(s, "warm") {
		t.Errorf("without warm starts:\n%s", s)
	}
	if s := scrape(&metrics.Job{Warm: func() *warm.Stats { return nil }}); !strings.Contains(s, "muster_warm_template_ready 0\n") {
		t.Errorf("with nothing known:\n%s", s)
	}
	s := scrape(&metrics.Job{Warm: func() *warm.Stats {
		return &warm.Stats{Ready: true, PSSBytes: 4096, BuildSeconds: 1.5, WarmStarts: 7, ColdStarts: 2}
	}})
	for _, want := range []string{"_template_ready 1", "_template_pss_bytes 4096", "_template_build_seconds 1.5"} {
		if !strings.Contains(s, "\nmuster_warm"+want+"\n") {
			t.Errorf("no %s in\n%s", want, s)
		}
	}
	for _, want := range []string{`{how="warm"} 7`, `{how="cold"} 2`} {
		if !strings.Contains(s, "\nmuster_worker_starts_total"+want+"\n") {
			t.Errorf("no %s in\n%s", want, s)
		}
	}
}

// Where the time of the workers has gone.
func TestTimes(t *testing.T) {
	j := &metrics.Job{Times: func(now int64) accounts.Spent {
		if time.Since(time.UnixMilli(now)) > time.Minute {
			t.Errorf("it was asked about %d", now)
		}
		return accounts.Spent{accounts.Running: 60_250, accounts.Stop: 1}
	}, Slow: func() *slow.Finding { return &slow.Finding{Rank: 5, Wait: 48 * time.Millisecond} }}
	j.Watch(nobody{})
	var b strings.Builder
	if err := j.WritePrometheus(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{account="running"} 60.25`, `{account="stop"} 0.001`, `{account="hang_until_noticed"} 0`} {
		if !strings.Contains(b.String(), "\nmuster_worker_time_seconds"+want+"\n") {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
	if !strings.Contains(b.String(), "\nmuster_slow_rank_wait_seconds{rank=\"5\"} 0.048\n") {
		t.Errorf("no slow rank in\n%s", &b)
	}
}

// nobody is an agent without workers.
type nobody struct{}

func (nobody) Job() *agent.Job                   { return &agent.Job{} }
func (nobody) Workers() []agent.Worker           { return nil }
func (nobody) TimerStats() (timer.Stats, uint64) { return timer.Stats{}, 0 }
func (nobody) GPUs(time.Duration) []agent.GPU    { return nil }

// A step that fails, and how long it took.
func TestFailedStep(t *testing.T) {
	r := &recorder{}
	began := time.Now()
	metrics.Observer(r)(agent.Event{Time: began.Add(time.Hour), Job: &agent.Job{}, What: agent.Finished{Step: agent.Step{Began: began, Err: errors.New("x")}}})
	want := []string{"[torchelastic]: SimpleElasticAgent.run.failure=1", "[torchelastic]: SimpleElasticAgent.run.duration.ms=3600000"}
	if diff := cmp.Diff(want, r.lines); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(r.times) == 0 || r.times[0].Before(began) {
		t.Errorf("times %v", r.times)
	}
	metrics.Observer(nil)(agent.Event{What: agent.Joining{}}) // nobody listens
}

func TestConsole(t *testing.T) {
	var b bytes.Buffer
	metrics.Console(&b).Emit(metrics.Metric{Time: time.UnixMicro(1795233104250001), Group: "g", Name: "n", Value: -5})
	if got, want := b.String(), "[1795233104.250001][g]: n=-5\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
