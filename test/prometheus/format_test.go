package prometheus

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/metrics"
)

// text returns what a scrape gets.
func text(t testing.TB, j *metrics.Job) string {
	t.Helper()
	var b bytes.Buffer
	if err := j.WritePrometheus(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// parse reads a scrape as Prometheus does.
func parse(t testing.TB, scrape string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(scrape))
	if err != nil {
		t.Fatalf("%v\n%s", err, scrape)
	}
	return families
}

// lint checks names, units and help as promtool does.
func lint(t testing.TB, scrape string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(scrape)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// values reads the counters and gauges of a scrape, by name and labels as they
// are printed there.
func values(t testing.TB, scrape string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for name, f := range parse(t, scrape) {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := name
			if labels != nil {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				all[key] = m.Counter.GetValue()
			case dto.MetricType_GAUGE:
				all[key] = m.Gauge.GetValue()
			case dto.MetricType_HISTOGRAM:
				all[key] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return all
}

// A scrape in the middle of everything is whole: the figures of a histogram agree
// with each other, and counters do not shrink.
func TestConcurrent(t *testing.T) {
	j := &metrics.Job{}
	now := time.Now()
	stopped := agent.Event{Time: now, Job: &agent.Job{}, What: agent.WorkersStopped{Took: 250 * time.Millisecond}}
	ended := agent.Event{Time: now, Job: &agent.Job{}, What: agent.AttemptEnded{Causes: []failure.Cause{failure.CauseOOM}}}
	const name, exits = "muster_worker_stop_duration_seconds", "muster_worker_exits_total{cause=oom}"
	const writers, times = 4, 500
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range times {
				j.Observe(stopped)
				j.Observe(ended)
			}
		})
	}
	before := 0.0
	for range 50 {
		scrape := text(t, j)
		hist := parse(t, scrape)[name].Metric[0].Histogram
		n := hist.GetSampleCount()
		if buckets := hist.Bucket; buckets[len(buckets)-1].GetCumulativeCount() != n || hist.GetSampleSum() != float64(n)/4 {
			t.Errorf("of %d observations the buckets hold %v, sum %v", n, hist.Bucket, hist.GetSampleSum())
		}
		now := values(t, scrape)[exits]
		if now < before {
			t.Errorf("the counter went from %v to %v", before, now)
		}
		before = now
	}
	wg.Wait()
	if got := values(t, text(t, j)); got[exits] != writers*times || got[name] != writers*times {
		t.Errorf("in the end %v", got)
	}
}

// Observing allocates nothing.
func TestAllocations(t *testing.T) {
	j := &metrics.Job{}
	e := agent.Event{Time: time.Now(), Job: &agent.Job{}, What: agent.WorkersStopped{Took: time.Second}}
	if n := testing.AllocsPerRun(100, func() { j.Observe(e) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

type broken struct{ calls int }

var errBroken = errors.New("broken")

func (w *broken) Write([]byte) (int, error) { w.calls++; return 0, errBroken }

func TestWriteError(t *testing.T) {
	w := &broken{}
	if err := new(metrics.Job).WritePrometheus(w); !errors.Is(err, errBroken) || w.calls != 1 {
		t.Errorf("error %v after %d writes", err, w.calls)
	}
}

// Whatever a label's value is, Prometheus reads it back.
func FuzzLabel(f *testing.F) {
	for _, s := range []string{"", "a", `\`, "\n", `"`, "\xff\xfe", "é日本", "a\\n\"b\n", "\x00", "}", `",x="`, "\r"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		j := &metrics.Job{}
		j.Observe(agent.Event{Job: &agent.Job{RunID: s, Role: s}, What: agent.Joining{}})
		want := strings.ToValidUTF8(s, "\uFFFD")
		for _, l := range parse(t, text(t, j))["muster_job_info"].Metric[0].Label {
			if l.GetName() != "host" && l.GetValue() != want {
				t.Errorf("%s is read as %q, want %q", l.GetName(), l.GetValue(), want)
			}
		}
	})
}

func BenchmarkWritePrometheus(b *testing.B) {
	j, _ := newJob()
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(text(b, j))))
	}
}
