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

	"github.com/muster-run/muster/metrics"
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
	initialize := []string{metrics.StepRendezvous, metrics.AssignWorkerRanks, metrics.StartWorkers, metrics.InitializeWorkers}
	tests := []struct {
		golden string
		run    func(metrics.Stream)
	}{
		{"success.txt", func(s metrics.Stream) {
			for _, step := range append(initialize, metrics.MonitorWorkers, metrics.Run) {
				s.Took(step, 0, nil)
			}
			s.Tick("default", 0, "SUCCEEDED")
			s.Summary("default", false, 0, 0)
		}},
		{"restart_then_fail.txt", func(s metrics.Stream) {
			for _, step := range append(initialize, metrics.MonitorWorkers, metrics.StopWorkers, metrics.RestartWorkers, metrics.Run) {
				s.Took(step, 0, nil)
			}
			for _, remaining := range []int{1, 0} {
				s.Tick("default", remaining, "HEALTHY")
				s.Tick("default", remaining, "FAILED")
			}
			s.Summary("default", true, 1, 0)
		}},
	}
	for _, tt := range tests {
		r := &recorder{}
		tt.run(metrics.Stream{Handler: r})
		slices.Sort(r.lines)
		if diff := cmp.Diff(names(t, "testdata/torchrun-2.15/"+tt.golden), slices.Compact(r.lines)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.golden, diff)
		}
	}
}

func TestStream(t *testing.T) {
	r := &recorder{}
	s := metrics.Stream{Group: "mine", Handler: r}
	began := time.Now()
	s.Took("f", time.Hour, errors.New("x"))
	if len(r.lines) != 2 || r.lines[0] != "[mine]: f.failure=1" || !strings.HasPrefix(r.lines[1], "[mine]: f.duration.ms=36000") {
		t.Errorf("got %q", r.lines)
	}
	if r.times[0].Before(began) {
		t.Errorf("time %v", r.times[0])
	}
	metrics.Stream{}.Put("x", 1)
	metrics.Stream{Handler: metrics.Null}.Put("x", 1)
}

func TestConsole(t *testing.T) {
	var b bytes.Buffer
	metrics.Console(&b).Emit(metrics.Metric{Time: time.UnixMicro(1795233104250001), Group: "g", Name: "n", Value: -5})
	if got, want := b.String(), "[1795233104.250001][g]: n=-5\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Source: SimpleElasticAgent._record_flakiness_metric.
func TestFlakiness(t *testing.T) {
	tests := []struct {
		failed         bool
		max, remaining int
		want           int64
	}{
		{false, 0, 0, 0}, {false, 3, 3, 0}, {false, 3, 2, 25}, {false, 2, 1, 33}, {false, 3, 0, 75}, {true, 3, 3, 100},
	}
	for _, tt := range tests {
		if got := metrics.Flakiness(tt.failed, tt.max, tt.remaining); got != tt.want {
			t.Errorf("%+v: got %d", tt, got)
		}
	}
}
