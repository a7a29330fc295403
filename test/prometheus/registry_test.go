package prometheus

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/muster-run/muster/metrics"
)

// text returns what a scrape gets.
func text(t testing.TB, r *metrics.Registry) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.WritePrometheus(&b); err != nil {
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

func label(name, value string) metrics.Label { return metrics.Label{Name: name, Value: value} }

// Source: "Text format details" of Prometheus' exposition formats.
func TestWritePrometheus(t *testing.T) {
	r := metrics.NewRegistry()
	h := r.Histogram("b_seconds", "How long.", []float64{0.5, 1})
	for _, v := range []float64{0.25, 0.5, 0.75, 3, math.NaN()} {
		h.Observe(v)
	}
	r.Histogram("b_seconds", "How long.", []float64{0.5, 1}, label("step", "x"))
	c := r.Counter("c_total", "A \\ and\nmore \"help\".", label("why", "b"))
	c.Inc()
	c.Add(1.5)
	c.Add(-1)
	c.Add(math.NaN())
	r.Counter("c_total", "", label("why", "b")).Inc() // the same
	r.Counter("c_total", "Not used.", label("why", "a\n\\\"é\xff"), label("other", "")).Add(1e15)
	g := r.Gauge("a", "First.")
	g.Set(1234567)
	g.Add(-1)
	r.Gauge("d", "Special.", label("v", "nan")).Set(math.NaN())
	r.Gauge("d", "Special.", label("v", "inf")).Set(math.Inf(1))
	r.Gauge("d", "Special.", label("v", "-inf")).Set(math.Inf(-1))
	r.Gauge("d", "Special.", label("v", "small")).Set(1.25e-9)
	want := `# HELP a First.
# TYPE a gauge
a 1234566
# HELP b_seconds How long.
# TYPE b_seconds histogram
b_seconds_bucket{le="0.5"} 2
b_seconds_bucket{le="1"} 3
b_seconds_bucket{le="+Inf"} 4
b_seconds_sum 4.5
b_seconds_count 4
b_seconds_bucket{step="x",le="0.5"} 0
b_seconds_bucket{step="x",le="1"} 0
b_seconds_bucket{step="x",le="+Inf"} 0
b_seconds_sum{step="x"} 0
b_seconds_count{step="x"} 0
# HELP c_total A \\ and\nmore "help".
# TYPE c_total counter
c_total{why="b"} 3.5
c_total{why="a\n\\\"é` + "\uFFFD" + `",other=""} 1e+15
# HELP d Special.
# TYPE d gauge
d{v="nan"} NaN
d{v="inf"} +Inf
d{v="-inf"} -Inf
d{v="small"} 1.25e-09
`
	got := text(t, r)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	f := parse(t, got)["c_total"]
	if f.GetHelp() != "A \\ and\nmore \"help\"." || f.Metric[1].Label[0].GetValue() != "a\n\\\"é\uFFFD" {
		t.Errorf("Prometheus reads %v", f)
	}
	if n, sum := h.Count(); n != 4 || sum != 4.5 {
		t.Errorf("the histogram has %d, sum %v", n, sum)
	}
}

// Callbacks see each scrape, and what they add does not stay.
func TestOnCollect(t *testing.T) {
	r := metrics.NewRegistry()
	r.Counter("kept_total", "Kept.", label("i", "0")).Inc()
	n := 0
	r.OnCollect(func(c *metrics.Collect) {
		n++
		c.Counter("kept_total", "Kept.", 10, label("i", "1"))
		c.Gauge("read", "Read.", float64(n))
		c.Gauge("read", "Read.", 99)       // twice
		c.Counter("read", "Read.", 99)     // another kind
		c.Gauge("kept_total", "Kept.", 99) // the same
		c.Gauge("not a name", "Bad.", 99)
		c.Gauge("no_help", "", 99)
		c.Gauge("labels", "Bad labels.", 99, label("a", "1"), label("a", "2"))
		c.Gauge("labels", "Bad labels.", 99, label("le", "1"))
		r.Gauge("late", "A callback may use the registry.").Set(1)
	})
	want := map[string]float64{"kept_total{i=0}": 1, "kept_total{i=1}": 10, "read": 1}
	if diff := cmp.Diff(want, values(t, text(t, r))); diff != "" {
		t.Errorf("first scrape (-want +got):\n%s", diff)
	}
	want["read"], want["late"] = 2, 1
	if diff := cmp.Diff(want, values(t, text(t, r))); diff != "" {
		t.Errorf("second scrape (-want +got):\n%s", diff)
	}
}

func TestBadNames(t *testing.T) {
	for name, f := range map[string]func(*metrics.Registry){
		"empty":       func(r *metrics.Registry) { r.Gauge("", "Help.") },
		"digit first": func(r *metrics.Registry) { r.Gauge("0a", "Help.") },
		"dash":        func(r *metrics.Registry) { r.Gauge("a-b", "Help.") },
		"no help":     func(r *metrics.Registry) { r.Gauge("a", "") },
		"label":       func(r *metrics.Registry) { r.Gauge("a", "Help.", label("b c", "")) },
		"reserved":    func(r *metrics.Registry) { r.Gauge("a", "Help.", label("__b", "")) },
		"le":          func(r *metrics.Registry) { r.Gauge("a", "Help.", label("le", "")) },
		"label twice": func(r *metrics.Registry) { r.Gauge("a", "Help.", label("b", "1"), label("b", "2")) },
		"later label": func(r *metrics.Registry) { r.Gauge("a", "Help."); r.Gauge("a", "Help.", label("", "")) },
		"two kinds":   func(r *metrics.Registry) { r.Gauge("a", "Help."); r.Counter("a", "Help.") },
		"buckets":     func(r *metrics.Registry) { r.Histogram("a", "Help.", []float64{2, 1}) },
		"NaN bucket":  func(r *metrics.Registry) { r.Histogram("a", "Help.", []float64{math.NaN()}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(metrics.NewRegistry())
		})
	}
}

// A scrape in the middle of everything is whole: the figures of a histogram agree
// with each other, and counters do not shrink.
func TestConcurrent(t *testing.T) {
	r := metrics.NewRegistry()
	h := r.Histogram("h_seconds", "H.", metrics.Seconds)
	c := r.Counter("c_total", "C.")
	r.OnCollect(func(c *metrics.Collect) { c.Gauge("g", "G.", 1) })
	const writers, times = 4, 500
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range times {
				h.Observe(0.25)
				c.Inc()
				r.Gauge("g2", "G2.").Add(1)
			}
		})
	}
	before := 0.0
	for range 50 {
		families := parse(t, text(t, r))
		hist := families["h_seconds"].Metric[0].Histogram
		n := hist.GetSampleCount()
		if buckets := hist.Bucket; buckets[len(buckets)-1].GetCumulativeCount() != n || hist.GetSampleSum() != float64(n)/4 {
			t.Errorf("of %d observations the buckets hold %v, sum %v", n, hist.Bucket, hist.GetSampleSum())
		}
		now := families["c_total"].Metric[0].Counter.GetValue()
		if now < before {
			t.Errorf("the counter went from %v to %v", before, now)
		}
		before = now
	}
	wg.Wait()
	if got := values(t, text(t, r)); got["c_total"] != writers*times || got["g2"] != writers*times || got["h_seconds"] != writers*times {
		t.Errorf("in the end %v", got)
	}
}

// Observing allocates nothing.
func TestAllocations(t *testing.T) {
	r := metrics.NewRegistry()
	h, c, g := r.Histogram("h_seconds", "H.", metrics.Seconds), r.Counter("c_total", "C."), r.Gauge("g", "G.")
	if n := testing.AllocsPerRun(100, func() { h.Observe(3); c.Inc(); g.Set(1) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	j := metrics.NewJob(r, metrics.Info{})
	if n := testing.AllocsPerRun(100, func() {
		j.Emit(metrics.Metric{Group: metrics.Group, Name: metrics.StepRendezvous + ".duration.ms", Value: 5})
	}); n > 0 {
		t.Errorf("%v allocations in Emit", n)
	}
}

type broken struct{ calls int }

var errBroken = errors.New("broken")

func (w *broken) Write([]byte) (int, error) { w.calls++; return 0, errBroken }

func TestWriteError(t *testing.T) {
	r := metrics.NewRegistry()
	r.Gauge("a", "A.")
	w := &broken{}
	if err := r.WritePrometheus(w); !errors.Is(err, errBroken) || w.calls != 1 {
		t.Errorf("error %v after %d writes", err, w.calls)
	}
}

// Whatever a label's value is, Prometheus reads it back.
func FuzzLabel(f *testing.F) {
	for _, s := range []string{"", "a", `\`, "\n", `"`, "\xff\xfe", "é日本", "a\\n\"b\n", "\x00", "}", `",x="`, "\r"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := metrics.NewRegistry()
		r.Gauge("a", "Help: "+s, label("v", s), label("w", s)).Set(1)
		family := parse(t, text(t, r))["a"]
		want := strings.ToValidUTF8(s, "\uFFFD")
		for _, l := range family.Metric[0].Label {
			if l.GetValue() != want {
				t.Errorf("%s is read as %q, want %q", l.GetName(), l.GetValue(), want)
			}
		}
	})
}

func BenchmarkEmit(b *testing.B) {
	j := metrics.NewJob(metrics.NewRegistry(), metrics.Info{})
	m := metrics.Metric{Group: metrics.Group, Name: metrics.StepRendezvous + ".duration.ms", Value: 5}
	b.ReportAllocs()
	for b.Loop() {
		j.Emit(m)
	}
}

func BenchmarkWritePrometheus(b *testing.B) {
	r := metrics.NewRegistry()
	metrics.NewJob(r, metrics.Info{RunID: "job", LocalWorldSize: 8})
	r.OnCollect(func(c *metrics.Collect) {
		for i := range 8 {
			c.Worker(metrics.Worker{Rank: i, LocalRank: i})
		}
	})
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(text(b, r))))
	}
}
