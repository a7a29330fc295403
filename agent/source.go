package agent

import (
	"io"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/metrics"
)

// Source is the agent as package health serves it. Its metrics are those of registry,
// which metrics.NewJob fills from Config.Metrics, and the agent's own.
func (a *Agent) Source(registry *metrics.Registry) health.Source {
	registry.OnCollect(a.Collect)
	return source{a, registry}
}

type source struct {
	*Agent
	registry *metrics.Registry
}

func (s source) WriteMetrics(w io.Writer) error { return s.registry.WritePrometheus(w) }
