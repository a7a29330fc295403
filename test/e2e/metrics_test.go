//go:build linux

package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A scraper is Prometheus, as far as one job is concerned.
type scraper struct {
	t      *testing.T
	client http.Client
}

func newScraper(t *testing.T, socket string) *scraper {
	s := &scraper{t: t}
	s.client.Timeout = patience
	s.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// scrape returns nil where nobody listens. It fails the test for whatever
// Prometheus or its linter would complain of.
func (s *scraper) scrape() map[string]*dto.MetricFamily {
	s.t.Helper()
	r, err := s.client.Get("http://muster/metrics")
	if err != nil {
		return nil
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	if r.StatusCode == http.StatusServiceUnavailable && strings.HasPrefix(string(text), "there are no metrics yet;") {
		return nil // the first answer takes more than a second on a busy machine
	}
	if f := expfmt.ResponseFormat(r.Header); r.StatusCode != http.StatusOK || f.FormatType() != expfmt.TypeTextPlain {
		s.t.Errorf("status %d, %s", r.StatusCode, r.Header.Get("Content-Type"))
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		s.t.Errorf("Prometheus: %v\n%s", err, text)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		s.t.Error(err)
	}
	for _, p := range problems {
		s.t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	return families
}

// until scrapes until it gets what it waits for: an answer may be a little old, and
// a worker is faster than the agent that has started it. It returns the last one.
func (s *scraper) until(there func(map[string]*dto.MetricFamily) bool) map[string]*dto.MetricFamily {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		f := s.scrape()
		if there(f) || time.Now().After(deadline) {
			return f
		}
	}
}

// sum adds up all series of a metric; a histogram counts as its count.
func sum(families map[string]*dto.MetricFamily, name string) float64 {
	total := 0.0
	for _, m := range families[name].GetMetric() {
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return total
}

// A live job is scraped while its workers run, and again and again while all
// starts anew. Counters never shrink, and the group is in one state at any time.
func TestMetricsOfALiveJob(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "health")
	j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --max-restarts 3 --health-addr unix:"+socket,
		"ready", "gate", "a0:r1:exit:3", "a1:r0:kill:KILL", "a2:r1:exit:4", "a0:hang", "a1:hang", "a2:hang", "report:last", "hang")
	j.await("ready 0", "ready 1")
	s := newScraper(t, socket)
	first := s.until(func(f map[string]*dto.MetricFamily) bool {
		return len(f["muster_worker_resident_memory_bytes"].GetMetric()) == 2 && sum(f, "muster_worker_start_duration_seconds") == 1
	})
	for name, want := range map[string]float64{
		"muster_group_state": 1, "muster_nodes": 1, "muster_world_size": 2, "muster_restarts_total": 0, "muster_worker_start_duration_seconds": 1,
		"muster_worker_exits_total": 0, "muster_restarts_remaining": 3,
	} {
		if got := sum(first, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if rss := sum(first, "muster_worker_resident_memory_bytes"); rss < 1<<20 {
		t.Errorf("two workers have %v bytes", rss)
	}

	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		before := first
		for last := false; !last; {
			select {
			case <-stop:
				last = true // once at least
			default:
			}
			now := s.scrape()
			if now == nil {
				continue
			}
			n++
			if got := sum(now, "muster_group_state"); got != 1 {
				t.Errorf("the group is in %v states", got)
			}
			for name, f := range now {
				if strings.HasPrefix(name, "muster_worker_cpu") { // begins anew with each worker
					continue
				}
				if f.GetType() != dto.MetricType_GAUGE && sum(now, name) < sum(before, name) {
					t.Errorf("%s shrank from %v to %v", name, sum(before, name), sum(now, name))
				}
			}
			before = now
		}
		stopped <- n
	}()
	j.gate.Open()
	j.await("last", "last")
	close(stop)
	if n := <-stopped; n == 0 {
		t.Error("nothing was scraped while the workers were restarted")
	}
	last := s.until(func(f map[string]*dto.MetricFamily) bool {
		return sum(f, "muster_worker_start_duration_seconds") == 4 && sum(f, "muster_worker_restarts") == 6
	})
	for name, want := range map[string]float64{
		"muster_group_state": 1, "muster_restarts_total": 3, "muster_restarts_remaining": 0, "muster_round": 3, "muster_rendezvous_duration_seconds": 4,
		"muster_restart_duration_seconds": 3, "muster_worker_exits_total": 6, "muster_worker_restarts": 6,
	} {
		if got := sum(last, name); got != want {
			t.Errorf("in the end %s is %v, want %v", name, got, want)
		}
	}
	causes := map[string]float64{}
	for _, m := range last["muster_worker_exits_total"].GetMetric() {
		causes[m.Label[0].GetValue()] = m.Counter.GetValue()
	}
	if causes["exit_code"] != 2 || causes["signal"] != 1 || causes["stopped"] != 3 {
		t.Errorf("causes are %v, want 2 exit codes, 1 signal, 3 stopped", causes)
	}
	j.signal(15)
	j.want(1)
}
