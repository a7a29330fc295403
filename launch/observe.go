package launch

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/rendezvous"
)

// observed is the job as package health sees it.
type observed struct {
	*health.Observer
	cfg     *Config
	line    *waitingLine
	metrics *metrics.Job // nil where nobody can ask
}

// waiting shows what the rendezvous waits for.
func (o *observed) waiting(w rendezvous.Waiting) {
	o.line.show(w)
	o.Waiting(w)
}

// watch names the agent to all who ask it.
func (o *observed) watch(a *agent.Agent) {
	o.Watch(a)
	if o.metrics != nil {
		o.metrics.Watch(a)
	}
}

// addr returns where to serve the job's health; "" for nowhere.
func (o *observed) addr() string {
	if o.cfg.Health.Addr != "" {
		return o.cfg.Health.Addr
	}
	port, _ := o.cfg.LookupEnv(health.EnvPort)
	if port == "" {
		return ""
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		o.cfg.Logger.Warn("TORCHELASTIC_HEALTH_CHECK_PORT is no port; the job's health is not served", "value", port)
		return ""
	}
	return port
}

// observers get the agent's events: for event logs, for metrics, and for what is served.
func (o *observed) observers(sink events.Sink, stdout io.Writer) []func(agent.Event) {
	all := append(slices.Clip(o.cfg.Records.Observers), events.Observer(sink), o.Observe)
	if o.addr() != "" {
		o.metrics = &metrics.Job{}
		all = append(all, o.metrics.Observe)
	}
	handlers := []metrics.Handler{o.cfg.Records.Metrics}
	if o.cfg.Records.MetricsHandler == metricsConsole { // Source: ConsoleMetricHandler prints to stdout.
		handlers = append(handlers, metrics.Console(stdout))
	}
	return append(all, metrics.Observer(handlers...))
}

// serve begins to serve where that is asked for, and returns where that is and what
// ends it. A job runs without that, too.
func (o *observed) serve(host string) (at string, stop func()) {
	if o.metrics == nil {
		return "", func() {}
	}
	log := o.cfg.Logger
	s, err := health.Listen(health.Config{Addr: o.addr(), Names: o.cfg.Health.Names, Source: o, Logger: log})
	if err != nil {
		log.Warn("the job's health is not served", "error", err)
		return "", func() {}
	}
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(ctx); err != nil {
			log.Warn("the job's health is no longer served", "error", err)
		}
	}()
	return s.URL(host), func() {
		end()
		<-done
	}
}

// announce says in a line where to look while the job runs: where its status page is,
// and where the log files are that somebody has asked for.
func (o *observed) announce(w io.Writer, page, logDir string) {
	var where []string
	if page != "" {
		where = append(where, "status page at "+page)
	}
	if l := &o.cfg.Logs; logDir != "" && (l.Dir != "" || l.Redirects.Any() || l.Tee.Any()) {
		where = append(where, "log files in "+logDir)
	}
	if where != nil {
		fmt.Fprintf(w, "muster: %s\n", strings.Join(where, ", "))
	}
}

// State is the Observer's, with what only the launcher knows.
func (o *observed) State(ctx context.Context) *health.State {
	s := o.Observer.State(ctx)
	s.Job.Endpoint = o.cfg.Rendezvous.Endpoint
	s.Job.MinHosts, s.Job.MaxHosts = o.cfg.MinNodes, o.cfg.MaxNodes
	return s
}

// WriteMetrics writes what Prometheus gets.
func (o *observed) WriteMetrics(w io.Writer) error { return o.metrics.WritePrometheus(w) }
