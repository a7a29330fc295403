package health_test

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/health"
)

// BenchmarkPage is what one new page costs, its State and the ends of its logs
// included; a tenth of a second's readers share one.
func BenchmarkPage(b *testing.B) { benchmarkAnswer(b, "/") }

// BenchmarkState is what one new State costs as JSON.
func BenchmarkState(b *testing.B) { benchmarkAnswer(b, "/v1/state") }

func benchmarkAnswer(b *testing.B, target string) {
	f := busyJob(b, time.Now())
	for b.Loop() {
		s, err := health.Listen(health.Config{Addr: "0", Source: f})
		if err != nil {
			b.Fatal(err)
		}
		if w := get(s, "GET", target); w.Code != 200 {
			b.Fatal(w.Code)
		}
		s.Close()
	}
}

// BenchmarkFlood asks for the page as often as 100 clients can, and reports what
// the server let through.
func BenchmarkFlood(b *testing.B) {
	_, url := serve(b, busyJob(b, time.Now()), nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	defer client.CloseIdleConnections()
	began := time.Now()
	work := make(chan struct{})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range work {
				if answer, err := client.Get(url); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
			}
		})
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "requests/s")
}
