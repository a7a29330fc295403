package metrics_test

import (
	"fmt"
	"os"

	"github.com/muster-run/muster/metrics"
)

// Metrics for Prometheus.
func ExampleRegistry() {
	r := metrics.NewRegistry()
	r.Counter("jobs_total", "Jobs that have ended.", metrics.Label{Name: "how", Value: "well"}).Inc()
	r.Gauge("jobs_running", "Jobs that run.").Set(2)
	if err := r.WritePrometheus(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// # HELP jobs_running Jobs that run.
	// # TYPE jobs_running gauge
	// jobs_running 2
	// # HELP jobs_total Jobs that have ended.
	// # TYPE jobs_total counter
	// jobs_total{how="well"} 1
}
