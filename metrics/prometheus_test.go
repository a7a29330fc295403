package metrics

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Source: "Text format details" of Prometheus' exposition formats.
func TestScrape(t *testing.T) {
	s := scrape{}
	h := &histogram{}
	for _, v := range []float64{0.001, 0.0011, 1000} {
		h.observe(v)
	}
	s.gauge("c", "Third.", 1.25e-9)
	s.counter("b_total", "Second.", 3.5, label{"why", "b"})
	s.counter("b_total", "Second.", 1e15, label{"why", "a\n\\\"é\xff"}, label{"other", ""})
	s.gauge("a", "First.", 1234567)
	s.histogram("d_seconds", "Fourth.", h)
	want := `# HELP a First.
# TYPE a gauge
a 1234567
# HELP b_total Second.
# TYPE b_total counter
b_total{why="b"} 3.5
b_total{why="a\n\\\"é` + "\uFFFD" + `",other=""} 1e+15
# HELP c Third.
# TYPE c gauge
c 1.25e-09
# HELP d_seconds Fourth.
# TYPE d_seconds histogram
d_seconds_bucket{le="0.001"} 1
d_seconds_bucket{le="0.002"} 2
`
	got := string(s.text())
	if len(got) < len(want) {
		t.Fatalf("got\n%s", got)
	}
	if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	end := `d_seconds_bucket{le="600"} 2
d_seconds_bucket{le="+Inf"} 3
d_seconds_sum 1000.0021
d_seconds_count 3
`
	if diff := cmp.Diff(end, got[len(got)-len(end):]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
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
		if got := flakiness(tt.failed, tt.max, tt.remaining); got != tt.want {
			t.Errorf("%+v: got %d", tt, got)
		}
	}
}
