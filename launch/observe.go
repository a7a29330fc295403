package launch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wire/unixsock"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/rendezvous"
)

// observed is the job as package health sees it.
type observed struct {
	*jobstate.Observer
	cfg     *Config
	line    *waitingLine
	metrics *metrics.Job       // nil where nobody can ask
	warm    func() *warm.Stats // nil without
	slow    func() string      // nil without; what is said of a slow rank
}

// waiting shows what the rendezvous waits for.
func (o *observed) waiting(w rendezvous.Waiting) {
	w.Note = text.AsOptions.Replace(w.Note)
	o.line.show(w)
	o.Waiting(w)
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
		o.cfg.Logger.Warn("TORCHELASTIC_HEALTH_CHECK_PORT is not a port; the job's health is not served", "value", port)
		return ""
	}
	return port
}

// observers get the agent's events: for what is served, and for metrics.
func (o *observed) observers(stdout io.Writer) []func(agent.Event) {
	all := []func(agent.Event){o.Observe}
	if o.addr() != "" || o.cfg.Socket || o.cfg.MaxNodes > 1 {
		o.metrics = &metrics.Job{}
		all = append(all, o.metrics.Observe)
	}
	handlers := []metrics.Handler{o.cfg.Records.Metrics}
	if o.cfg.Records.MetricsHandler == "console" { // Source: ConsoleMetricHandler prints to stdout.
		handlers = append(handlers, metrics.Console(stdout))
	}
	return append(all, metrics.Observer(handlers...))
}

// serve begins to serve where --health-addr asks for it, and at the socket of this job's user. It
// returns the URL of the first. A job runs without them, too.
func (j *job) serve() (at string) {
	o := j.watched
	var all health.Config // what both have
	if j.calls != nil {
		all.Call, all.CallToRead = j.calls.Call, j.calls.CallToRead
	}
	if addr := o.addr(); addr != "" {
		page := all
		page.Addr, page.Names = addr, o.cfg.Health.Names
		if s := j.begin(page); s != nil {
			at = s.URL(j.conf.Host)
			o.cfg.Logger.Info("serving the job's health", "url", at)
		}
	}
	if o.cfg.Socket {
		if l, err := unixsock.ListenAgent(o.cfg.RunID); err != nil {
			o.cfg.Logger.Warn("the job has no socket, so muster ps, muster stop and other commands cannot find it", "error", err)
		} else {
			socket := all
			socket.Listener, socket.Control = l, j.control()
			j.begin(socket)
		}
	}
	return at
}

func (j *job) control() *control { return &control{j.agent, j.stop, j.cfg.Logger, j.cfg.MaxNodes <= 1} }

// control is what the job's user asks of it through its socket.
type control struct {
	*agent.Agent
	end context.CancelCauseFunc
	log *slog.Logger

	alone bool // the job has no other hosts
}

// Stop returns what does as SIGTERM, also where the agent handles no signals.
func (c *control) Stop(by string, wholeJob bool) func() {
	c.Agent.Stopping()
	log := c.log
	if by != "" {
		log = log.With("by", by)
	}
	asked, ended := "muster stop: this host is asked to leave the job", "muster stop: this host has left the job"
	if wholeJob || c.alone {
		asked, ended = "muster stop: the job is stopped", "muster stop: the job is stopped"
	}
	log.Warn(asked)
	return func() { c.end(&stopError{process.SignalError{Signal: syscall.SIGTERM}, wholeJob, ended}) }
}

// A stopError is the cause of a stop by control.Stop: it is to the workers as the signal is.
type stopError struct {
	signal   process.SignalError
	wholeJob bool
	text     string
}

func (e *stopError) Error() string { return e.text }
func (e *stopError) Unwrap() error { return &e.signal }

// begin begins to serve at one address, until the job's end. It returns nil if it cannot.
func (j *job) begin(cfg health.Config) *health.Server {
	log := j.cfg.Logger
	cfg.Source, cfg.Logger, cfg.Logs = j.watched, log, j.agent
	s, err := health.Listen(cfg)
	if err != nil {
		log.Warn("the job's health is not served", "error", err)
		return nil
	}
	ctx, end := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx); err != nil {
			log.Warn("the job's health is no longer served", "error", err)
		}
	})
	j.add(part{End: func() {
		end()
		serving.Wait()
	}})
	return s
}

// announce says in a line where to look while the job runs: where its status page is, and
// its log directory, of which little is left after a success unless somebody has asked for
// log files. A logger that does not even take warnings wants to be quiet.
func (o *observed) announce(w io.Writer, page, logDir string) {
	if o.cfg.quiet || !o.cfg.Logger.Enabled(context.Background(), slog.LevelWarn) {
		return
	}
	var where []string
	if page != "" {
		where = append(where, "status page at "+page)
	}
	if l := &o.cfg.Logs; logDir != "" {
		what := "log directory "
		if l.Dir != "" || l.Redirects.Any() || l.Tee.Any() {
			what = "log files in "
		}
		where = append(where, what+logDir)
	}
	if where != nil {
		fmt.Fprintf(w, "muster: %s\n", text.Line(strings.Join(where, ", "), 8192))
	}
}

// State is the Observer's, with what only the launcher knows.
func (o *observed) State(ctx context.Context) *jobstate.State {
	s := o.Observer.State(ctx)
	s.Job.Endpoint = o.cfg.Rendezvous.Endpoint
	if o.warm != nil {
		s.Host.Warm = o.warm()
	}
	if o.slow != nil {
		s.Job.WaitingFor = cmp.Or(s.Job.WaitingFor, o.slow())
	}
	s.Job.MinHosts, s.Job.MaxHosts = o.cfg.MinNodes, o.cfg.MaxNodes
	return s
}

// WriteMetrics writes what Prometheus gets.
func (o *observed) WriteMetrics(w io.Writer) error { return o.metrics.WritePrometheus(w) }
