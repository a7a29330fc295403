package launch

import (
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// Config is one host's part of a job: how large the job is, where its hosts meet, what the
// workers are and how they are watched, and who gets to know what happens. It is checked
// once, by Resolve, which Run calls if nobody has, and not changed afterwards. A zero field
// means the default that its comment names.
// Source: LaunchConfig in torch/distributed/launcher/api.py; the defaults are
// those of torchrun's command line.
type Config struct {
	// MinNodes and MaxNodes bound the number of hosts. 0 means 1 for MinNodes
	// and MinNodes for MaxNodes.
	MinNodes, MaxNodes int
	// NprocPerNode is the number of workers on this host. 0 means 1.
	NprocPerNode int
	// RunID names the job. "" means a new random UUID where the job meets on
	// this host only, and "none" otherwise.
	RunID string
	// Rendezvous says where and how the hosts meet.
	Rendezvous Rendezvous

	// Workers says what each worker runs.
	Workers Workers
	// Options say how the workers are watched and stopped. A ShutdownTimeout, HelperTimeout,
	// ExitBarrierTimeout or AutopsyTimeout of 0 means process.DefaultGrace, 30 s,
	// agent.DefaultExitBarrierTimeout or 5 s here; NoAutopsy means that no evidence is
	// collected. PreemptionSignals are handled even if SignalsToHandle lacks them.
	agent.Options
	// SignalsToHandle are forwarded to the workers. SignalsText is the text that workers
	// see in TORCHELASTIC_SIGNALS_TO_HANDLE, names with commas between; without
	// SignalsToHandle those are taken from it. Both unset means
	// SIGTERM,SIGINT,SIGHUP,SIGQUIT.
	SignalsToHandle []syscall.Signal
	SignalsText     string
	// HealthCheck is a site's own check of this host, a command for sh, that runs
	// before the host joins the job, for 5 min at most. A host that fails it does not
	// join, and Run returns a *HealthCheckError. "" means none.
	HealthCheck string

	// Logs says where the workers' output goes. Its RunID, Stdout, Stderr and
	// Logger are filled from this Config where they are unset.
	Logs logs.Config
	// Health says where package health serves: Addr is a port of the loopback interface,
	// host:port or unix:/path. "" means what TORCHELASTIC_HEALTH_CHECK_PORT says, and
	// nowhere without it. Source and Logger are Run's own.
	Health health.Config
	// Socket makes the agent listen at a Unix socket that only its user can connect to, in
	// XDG_RUNTIME_DIR or the temporary directory: `muster ps`, `muster stop` and the like
	// find the job there. A job continues without it. The muster command sets it.
	Socket bool
	// Records says who gets what happens, beside the log.
	Records Records

	// WholeProgram says that the program does nothing but this job: see
	// process.SupervisorConfig. The muster command sets it.
	WholeProgram bool
	// Env is the agent's environment, which workers inherit. nil means
	// os.Environ().
	Env []string
	// Stdout and Stderr are those of the agent; nil means os.Stdout and os.Stderr. What
	// they may be else than files: see logs.Config. A Stderr that is set also gets lines for
	// people: what the rendezvous waits for, and where the log directory is.
	Stdout, Stderr io.Writer
	// Logger gets what the agent has to say; nil means slog.Default().
	Logger *slog.Logger

	quiet bool // Stderr was not set
}

// Rendezvous says where and how the hosts of a job meet.
type Rendezvous struct {
	// Backend is static, c10d, etcd or quorum. Default static, which without
	// Endpoint and MasterPort means a c10d rendezvous of this host alone.
	Backend string
	// Endpoint is host:port of the rendezvous. "" means what the backend
	// makes of it: for static MasterAddr:MasterPort.
	Endpoint string
	// Conf holds the settings of --rdzv-conf. Without token_file the job's token, if it
	// has one, is in the variable MUSTER_TOKEN.
	Conf map[string]string
	// NodeRank is this host's rank; only static reads it.
	NodeRank int
	// MasterAddr and MasterPort are the endpoint of static when Endpoint is
	// empty. Default 127.0.0.1, and 29500. A job of one host without MasterPort takes a
	// free port.
	MasterAddr string
	MasterPort int
	// LocalAddr is this host's address as given to its peers. "" means the IP address
	// by which it reaches the rendezvous.
	LocalAddr string
	// Standalone makes this host a job of its own: c10d at a free port.
	Standalone bool
	// Handler is used instead of one made from the other fields. Run ends it, with
	// Shutdown or Leave. The RunID is the handler's.
	Handler rendezvous.Handler

	settings *rendezvous.Settings // what Resolve makes of Conf; nil: not resolved yet
}

// Workers says what the workers of this host run.
type Workers struct {
	// Role of the workers, for messages and role ranks. Default() has "default"; "" is a role, too.
	Role string
	// Entrypoint is the executable of every worker, looked up in the worker's
	// PATH if it has no slash.
	Entrypoint string
	// Args follow the executable. In them ${local_rank} and $local_rank are the worker's
	// local rank, and $$ is $; ${rank}, ${role_name} and ${hostname} are replaced, too.
	Args []string
	// TorchrunMacros replaces only what torchrun does: ${local_rank}, $local_rank and $$.
	TorchrunMacros bool
	// Func names a function that every worker runs instead of Entrypoint, registered
	// with package process; the program's main has to call process.FuncMain. Input
	// returns what a worker's function gets; nil means nothing. What the functions
	// return is in the Result, by global rank.
	Func  string
	Input func(localRank int) []byte
	// Start starts the workers in place of s.Start. It may change cfg and call that, or return a Group of
	// its own; Entrypoint need not be a program of this host then. nil means s.Start.
	Start func(s *process.Supervisor, cfg process.Config) (agent.Group, error)
	// Title heads the failure report. Default Entrypoint or Func.
	Title string

	// VirtualLocalRank gives every worker LOCAL_RANK=0 and one device of its own.
	VirtualLocalRank bool
	// NUMABinding is "", node, socket, exclusive or core-complex.
	NUMABinding string
	// CPUs are the CPUs that each local rank may use. nil means: those that
	// NUMABinding says, or all.
	CPUs map[int][]int
	// Warm starts Python workers as forks of a process that has imported what they import:
	// see docs/warm.md. Linux only; elsewhere, and where it cannot be, they start as usual.
	Warm bool
	// OMPNumThreads is the workers' OMP_NUM_THREADS; "" leaves it as it is.
	OMPNumThreads string
}

// Records says who gets what happens: events, TorchElastic's metrics, or all of it.
type Records struct {
	// EventLogHandler says where events go: null, console (JSON lines on Stderr),
	// dynamic_rendezvous (as null) or file. Default null.
	EventLogHandler string
	// EventLogFile is a file that gets events, too, whatever the handler is. ""
	// means none; with the handler file it means events.FileName in the log
	// directory.
	EventLogFile string
	// Events gets events, too, whatever the handler is; nil means no such sink. It
	// stays the caller's.
	Events events.Sink
	// MetricsHandler is null or console, which prints TorchElastic's metrics to
	// Stdout. Default null.
	MetricsHandler string
	// Metrics gets TorchElastic's metrics, too; nil means no such handler.
	Metrics metrics.Handler
	// OnEvent is a command for sh that runs for events of the job on this host, with one
	// JSON document on stdin (docs/formats.md): start, hang, failure, host lost, restart,
	// end. One runs at a time, for 30 s at most; up to 32 events wait, and the end of the job
	// waits for up to 30 s. Its output goes to the Logger where it fails. "" means none.
	OnEvent string
	// Observers get all events of the agent. The events and metrics above are made of those.
	Observers []func(agent.Event)
}

// NoAutopsy as an AutopsyTimeout means that no evidence is collected, since 0 is the default.
const NoAutopsy = time.Duration(-1)

// Default returns the Config of a torchrun command line without options: one
// worker on one host. What the workers run is the caller's to set.
// Source: get_args_parser in torch/distributed/run.py.
func Default() Config {
	return Config{
		MinNodes:     1,
		MaxNodes:     1,
		NprocPerNode: 1,
		Rendezvous:   Rendezvous{Backend: "static", MasterAddr: "127.0.0.1"},
		Workers:      Workers{Role: "default"},
		Options: agent.Options{ShutdownTimeout: process.DefaultGrace, HelperTimeout: 30 * time.Second,
			ExitBarrierTimeout: agent.DefaultExitBarrierTimeout, AutopsyTimeout: 5 * time.Second},
		SignalsText: "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
		Records:     Records{EventLogHandler: "null", MetricsHandler: "null"},
	}
}

// told gets lines for people.
func (cfg *Config) told() io.Writer {
	if cfg.quiet {
		return io.Discard
	}
	return cfg.Stderr
}
