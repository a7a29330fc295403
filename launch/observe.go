package launch

import (
	"context"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/rendezvous"
)

// observed is the job as package health sees it.
type observed struct {
	cfg      *Config
	line     *waitingLine
	agent    atomic.Pointer[agent.Agent]
	registry *metrics.Registry // nil where nobody can ask
}

// waiting shows what the rendezvous waits for.
func (o *observed) waiting(w rendezvous.Waiting) {
	o.line.show(w)
	if a := o.agent.Load(); a != nil {
		a.Waiting(w)
	}
}

// addr returns where to serve; "" for nowhere.
func (o *observed) addr() string {
	if o.cfg.HealthAddr != "" {
		return o.cfg.HealthAddr
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

// metrics returns where the agent's metrics go.
func (o *observed) metrics(host string) metrics.Handler {
	if o.addr() == "" {
		return nil
	}
	o.registry = metrics.NewRegistry()
	o.registry.OnCollect(func(c *metrics.Collect) {
		if a := o.agent.Load(); a != nil {
			a.Collect(c)
		}
	})
	return metrics.NewJob(o.registry, metrics.Info{
		RunID: o.cfg.RunID, Role: o.cfg.Role, Host: host,
		LocalWorldSize: o.cfg.NprocPerNode, MaxRestarts: o.cfg.MaxRestarts,
	})
}

// serve begins to serve where that is asked for, and returns what ends it. A job
// runs also without.
func (o *observed) serve() (stop func()) {
	if o.registry == nil {
		return func() {}
	}
	log := o.cfg.Logger
	s, err := health.Listen(health.Config{Addr: o.addr(), Names: o.cfg.HealthNames, Source: o, Logger: log})
	if err != nil {
		log.Warn("the job's health is not served", "error", err)
		return func() {}
	}
	log.Info("serving the job's health", "addr", s.Addr())
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(ctx); err != nil {
			log.Warn("the job's health is no longer served", "error", err)
		}
	}()
	return func() {
		end()
		<-done
	}
}

// Alive is the agent's.
func (o *observed) Alive() time.Time { return o.agent.Load().Alive() }

// State is the agent's, with what only the launcher knows.
func (o *observed) State(ctx context.Context) *health.State {
	s := o.agent.Load().State(ctx)
	s.Job.Endpoint = o.cfg.RdzvEndpoint
	s.Job.MinHosts, s.Job.MaxHosts = o.cfg.MinNodes, o.cfg.MaxNodes
	return s
}

// WriteMetrics writes the registry.
func (o *observed) WriteMetrics(w io.Writer) error { return o.registry.WritePrometheus(w) }
