package launch

import (
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// Defaults of the command line.
// Source: get_args_parser in torch/distributed/run.py.
const (
	DefaultBackend            = "static"
	DefaultRunID              = "none"
	DefaultRole               = "default"
	DefaultMasterAddr         = "127.0.0.1"
	DefaultMasterPort         = 29500
	DefaultMonitorInterval    = 100 * time.Millisecond
	DefaultShutdownTimeout    = process.DefaultGrace
	DefaultExitBarrierTimeout = agent.DefaultExitBarrierTimeout
	DefaultAutopsyTimeout     = 5 * time.Second
	NoAutopsy                 = time.Duration(-1)
	DefaultSignals            = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
	DefaultEventLogHandler    = "null"
	DefaultMetricsHandler     = "null"
)

// Config is one host's part of a job. It is checked once, by Resolve, which Run calls
// if nobody has, and not changed afterwards. A zero field means the default that its
// comment names.
// Source: LaunchConfig in torch/distributed/launcher/api.py; the defaults are
// those of torchrun's command line.
type Config struct {
	// MinNodes and MaxNodes bound the number of hosts. 0 means 1 for MinNodes
	// and MinNodes for MaxNodes.
	MinNodes, MaxNodes int
	// NprocPerNode is the number of workers on this host. 0 means 1.
	NprocPerNode int
	// RunID names the job. "" means a new random UUID where the job meets on
	// this host only, and DefaultRunID otherwise.
	RunID string
	// Role of the workers, for messages and role ranks. Default DefaultRole.
	Role string

	// RdzvBackend is static, c10d, etcd or quorum. Default DefaultBackend, which without
	// endpoint and port means a c10d rendezvous of this host alone.
	RdzvBackend string
	// RdzvEndpoint is host:port of the rendezvous. "" means what the backend
	// makes of it: for static MasterAddr:MasterPort.
	RdzvEndpoint string
	// RdzvConf holds the settings of --rdzv-conf.
	RdzvConf map[string]string
	// NodeRank is this host's rank; only static reads it.
	NodeRank int
	// MasterAddr and MasterPort are the endpoint of static when RdzvEndpoint is
	// empty. Default DefaultMasterAddr, and DefaultMasterPort. A job of one
	// host without MasterPort takes a free port.
	MasterAddr string
	MasterPort int
	// LocalAddr is this host's address as given to its peers. "" means the IP address
	// by which it reaches the rendezvous.
	LocalAddr string
	// Rendezvous is a handler to be used instead of one made from RdzvBackend and what
	// belongs to that. Run ends it, with Shutdown or Leave. RunID is the handler's.
	Rendezvous rendezvous.Handler
	// Standalone makes this host a job of its own: c10d at a free port.
	Standalone bool

	// Options say how the workers are watched and stopped. A ShutdownTimeout,
	// ExitBarrierTimeout or AutopsyTimeout of 0 means its default here, NoAutopsy that
	// no evidence is collected. PreemptionSignals are handled even if SignalsToHandle
	// lacks them.
	agent.Options
	// MonitorInterval bounds what still has to be polled. 0 means
	// DefaultMonitorInterval.
	MonitorInterval time.Duration
	// HealthCheck is a site's own check of this host, a command for sh, that runs
	// before the host joins the job. A host that fails it does not join, and Run
	// returns a *HealthCheckError. "" means none.
	HealthCheck string
	// HealthAddr is where package health serves: a port of the loopback interface,
	// host:port or unix:/path. "" means what TORCHELASTIC_HEALTH_CHECK_PORT says,
	// and nowhere without it.
	HealthAddr string
	// HealthNames are further names that it answers to; see health.Config.
	HealthNames []string

	// Entrypoint is the executable of every worker, looked up in the worker's
	// PATH if it has no slash.
	Entrypoint string
	// Args follow the executable. ${local_rank} in them is the worker's local
	// rank, see Substitute.
	Args []string
	// Func names a function that every worker runs instead of Entrypoint, registered
	// with package process; the program's main has to call process.FuncMain. Input
	// returns what a worker's function gets; nil means nothing. What the functions
	// return is in the Result, by global rank.
	Func  string
	Input func(localRank int) []byte
	// Title heads the failure report. Default Entrypoint or Func.
	Title string

	// VirtualLocalRank gives every worker LOCAL_RANK=0 and one device of its own.
	VirtualLocalRank bool
	// NUMABinding is "", node, socket, exclusive or core-complex.
	NUMABinding string
	// CPUs are the CPUs that each local rank may use. nil means: those that
	// NUMABinding says, or all.
	CPUs map[int][]int

	// SignalsToHandle are forwarded to the workers. SignalsText is the text
	// that workers see in TORCHELASTIC_SIGNALS_TO_HANDLE. Both unset means
	// DefaultSignals; ParseSignals makes the one of the other.
	SignalsToHandle []syscall.Signal
	SignalsText     string

	// Logs says where the workers' output goes. Its RunID, Stdout, Stderr and
	// Logger are filled from this Config where they are unset.
	Logs logs.Config
	// EventLogHandler says where events go: null, console (JSON lines on Stderr),
	// dynamic_rendezvous (as null) or file. Default DefaultEventLogHandler.
	EventLogHandler string
	// EventLogFile is a file that gets events, too, whatever the handler is. ""
	// means none; with the handler file it means events.FileName in the log
	// directory.
	EventLogFile string
	// Events gets events, too, whatever the handler is; nil means no such sink. It
	// stays the caller's.
	Events events.Sink
	// MetricsHandler is null or console, which prints TorchElastic's metrics to
	// Stdout. Default DefaultMetricsHandler.
	MetricsHandler string
	// Metrics gets TorchElastic's metrics, too; nil means no such handler.
	Metrics metrics.Handler
	// Observers get all that the agent tells, of which Events and Metrics are parts.
	Observers []func(agent.Event)
	// ExitCode is "torchrun" (a failed job exits 1) or "worker" (it exits as the
	// worker that failed first). Default "torchrun".
	ExitCode string

	// WholeProgram says that the program does nothing but this job: see
	// process.SupervisorConfig. The muster command sets it.
	WholeProgram bool

	// Env is the agent's environment, which workers inherit. nil means
	// os.Environ().
	Env []string
	// OMPNumThreads is the workers' OMP_NUM_THREADS; "" leaves it as it is.
	OMPNumThreads string

	// Stdin, Stdout and Stderr are those of the agent; nil means os.Stdin,
	// os.Stdout, os.Stderr. What they may be else than files: see logs.Config.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	// Logger gets what the agent has to say; nil means slog.Default().
	Logger *slog.Logger

	settings *rendezvous.Settings // from Resolve; nil before
}

// Default returns the Config of a torchrun command line without options: one
// worker on one host. Entrypoint and Args are the caller's to set.
func Default() Config {
	return Config{
		MinNodes:        1,
		MaxNodes:        1,
		NprocPerNode:    1,
		RdzvBackend:     DefaultBackend,
		Role:            DefaultRole,
		MasterAddr:      DefaultMasterAddr,
		MonitorInterval: DefaultMonitorInterval,
		Options: agent.Options{
			ShutdownTimeout:    DefaultShutdownTimeout,
			ExitBarrierTimeout: DefaultExitBarrierTimeout,
			AutopsyTimeout:     DefaultAutopsyTimeout,
		},
		SignalsText:     DefaultSignals,
		EventLogHandler: DefaultEventLogHandler,
		MetricsHandler:  DefaultMetricsHandler,
		ExitCode:        ExitTorchrun,
	}
}

// What Config.ExitCode may be.
const (
	ExitTorchrun = "torchrun" // a failed job exits 1
	ExitWorker   = "worker"   // a failed job exits as the worker that failed first
)
