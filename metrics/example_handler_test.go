package metrics_test

import (
	"os"
	"time"

	"github.com/muster-run/muster/metrics"
)

// TorchElastic's console, and a metric of the program's own.
func ExampleHandler() {
	var h metrics.Handler = metrics.Console(os.Stdout)
	h.Emit(metrics.Metric{Time: time.Unix(1.7e9, 0), Group: "mine", Name: "steps", Value: 7})
	// Output: [1700000000.000000][mine]: steps=7
}
