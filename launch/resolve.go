package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// A ConfigError says everything that is wrong with a Config.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// Resolve returns cfg with every default filled in and every choice made: which
// rendezvous at which endpoint, under which run ID, with which signals and CPUs.
// The error is a *ConfigError that joins all problems found. What Resolve
// returns, Resolve leaves as it is.
//
// Which rendezvous: Standalone is c10d at a free port of this host. So is static
// for one host, if neither endpoint nor port is given, and c10d for one with a file as store. Otherwise it is what
// Rendezvous.Backend says.
//
// Source: run and config_from_args in torch/distributed/run.py.
func Resolve(cfg Config) (Config, error) {
	var errs []error
	failIf := func(bad bool, format string, a ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, a...))
		}
	}
	cfg.fillDefaults()
	failIf(cfg.MinNodes < 1 || cfg.MinNodes > cfg.MaxNodes,
		"nnodes: the smallest number of hosts must be at least 1 and at most the largest, got %d:%d",
		cfg.MinNodes, cfg.MaxNodes)
	failIf(cfg.NprocPerNode < 1, "nproc per node: at least one worker is needed, got %d", cfg.NprocPerNode)
	failIf(cfg.MaxRestarts < 0, "max restarts must be >= 0, got %d", cfg.MaxRestarts)
	failIf(cfg.ExitBarrierTimeout < 0, "exit barrier timeout must be non-negative, got %v", cfg.ExitBarrierTimeout)
	failIf(cfg.HangTimeout < 0 && cfg.HangTimeout != agent.HangAuto, "hang timeout must be non-negative, got %v", cfg.HangTimeout)
	failIf(cfg.LiveTimeout < 0, "live timeout must be non-negative, got %v", cfg.LiveTimeout)
	errs = append(errs, cfg.events(cfg.Logs.Dir, nil).Check())
	name := cfg.Records.MetricsHandler
	failIf(name != "null" && name != "console", "metrics handler %q is not known; want null or console", name)
	if cfg.Health.Addr != "" {
		_, _, err := health.ParseAddr(cfg.Health.Addr)
		errs = append(errs, err)
	}
	if cfg.SignalsToHandle == nil {
		signals, _, err := text.Signals(cfg.SignalsText)
		failIf(err != nil, "signals to handle: %w", err)
		cfg.SignalsToHandle = signals
	}
	for _, sig := range slices.Concat(cfg.SignalsToHandle, cfg.PreemptionSignals) {
		failIf(text.SignalName(sig) == "" || sig == syscall.SIGKILL || sig == syscall.SIGSTOP,
			"signals to handle: %d (%s) cannot be handled", int(sig), sig)
	}
	errs = append(errs, cfg.resolveRendezvous(), cfg.resolveDevices(), checkLogDir(cfg.Logs), cfg.checkWorker())
	if err := errors.Join(errs...); err != nil {
		cfg.Rendezvous.settings = nil
		return cfg, &ConfigError{err}
	}
	return cfg, nil
}

func (cfg *Config) fillDefaults() {
	d := Default()
	cfg.MinNodes = cmp.Or(cfg.MinNodes, d.MinNodes)
	cfg.MaxNodes = cmp.Or(cfg.MaxNodes, cfg.MinNodes)
	cfg.NprocPerNode = cmp.Or(cfg.NprocPerNode, d.NprocPerNode)
	cfg.Rendezvous.Backend = cmp.Or(cfg.Rendezvous.Backend, d.Rendezvous.Backend)
	cfg.Rendezvous.MasterAddr = cmp.Or(cfg.Rendezvous.MasterAddr, d.Rendezvous.MasterAddr)
	cfg.Workers.Title = cmp.Or(cfg.Workers.Title, cfg.Workers.Entrypoint, cfg.Workers.Func)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, d.ShutdownTimeout)
	cfg.HelperTimeout = cmp.Or(cfg.HelperTimeout, d.HelperTimeout)
	cfg.AutopsyTimeout = cmp.Or(cfg.AutopsyTimeout, d.AutopsyTimeout)
	cfg.ExitBarrierTimeout = cmp.Or(cfg.ExitBarrierTimeout, d.ExitBarrierTimeout)
	cfg.Records.EventLogHandler = cmp.Or(cfg.Records.EventLogHandler, d.Records.EventLogHandler)
	cfg.Records.MetricsHandler = cmp.Or(cfg.Records.MetricsHandler, d.Records.MetricsHandler)
	cfg.Stdout = cmp.Or[io.Writer](cfg.Stdout, os.Stdout)
	if cfg.Stderr == nil {
		cfg.Stderr, cfg.quiet = os.Stderr, true
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Logs.Stdout = cmp.Or(cfg.Logs.Stdout, cfg.Stdout)
	cfg.Logs.Stderr = cmp.Or(cfg.Logs.Stderr, cfg.Stderr)
	cfg.Logs.Logger = cmp.Or(cfg.Logs.Logger, cfg.Logger)
	if cfg.SignalsToHandle == nil && cfg.SignalsText == "" {
		cfg.SignalsText = d.SignalsText
	}
}

// resolveRendezvous chooses backend, endpoint and run ID.
func (cfg *Config) resolveRendezvous() error {
	var errs []error
	r := &cfg.Rendezvous
	reads := r.Backend == "static" && r.Endpoint == "" && !r.Standalone
	if reads && (r.MasterPort < 0 || r.MasterPort > 65535) {
		errs = append(errs, fmt.Errorf("master port: want 0 to 65535, got %d", r.MasterPort))
		r.MasterPort = 0 // or the endpoint would be wrong, too
	}
	if cfg.Rendezvous.Handler != nil {
		cfg.Rendezvous.Backend, cfg.RunID = cfg.Rendezvous.Handler.Backend(), cfg.Rendezvous.Handler.RunID()
		cfg.Logs.RunID = cmp.Or(cfg.Logs.RunID, cfg.RunID)
		cfg.Rendezvous.settings = new(rendezvous.Settings)
		return errors.Join(errs...)
	}
	if own, _ := cfg.LookupEnv(envNoSharedStore); cfg.Live && own == "1" {
		errs = append(errs, fmt.Errorf(
			"Config.Live and %s=1 contradict each other: each agent serves the workers' store; leave one of them out", envNoSharedStore))
	}
	alone := r.Backend == "static" && r.Endpoint == "" && r.MasterPort == 0 ||
		r.Backend == "c10d" && strings.EqualFold(r.Conf["store_type"], "file") // whose endpoint is a path
	if cfg.Rendezvous.Standalone || alone && cfg.MaxNodes == 1 {
		cfg.Rendezvous.Backend, cfg.Rendezvous.Endpoint = "c10d", "localhost:0"
		cfg.RunID = cmp.Or(cfg.RunID, NewRunID())
	}
	settings, err := cfg.Settings()
	cfg.Rendezvous.settings = &settings
	cfg.RunID = cmp.Or(cfg.RunID, noRunID)
	cfg.Logs.RunID = cmp.Or(cfg.Logs.RunID, cfg.RunID)
	return errors.Join(append(errs, err, cfg.checkEndpoint())...)
}

// checkStatic checks the address of the host with node rank 0, and fills it in.
func (cfg *Config) checkStatic() error {
	r := &cfg.Rendezvous
	if r.Endpoint == "" {
		host := strings.Trim(r.MasterAddr, "[]") // of an IPv6 address, which may have its brackets or not
		r.Endpoint = net.JoinHostPort(host, strconv.Itoa(cmp.Or(r.MasterPort, defaultMasterPort)))
	}
	_, port, err := hostport.Split(r.Endpoint, -1)
	switch {
	case err != nil:
	case port < 0:
		err = fmt.Errorf("port is missing in endpoint: %s; give it as HOST:PORT, or as Rendezvous.MasterPort", r.Endpoint)
	case port == 0 && cfg.MaxNodes > 1:
		err = fmt.Errorf(portZero, nodes(*cfg), r.Endpoint)
	}
	if r.NodeRank < 0 || r.NodeRank >= cfg.MaxNodes {
		err = errors.Join(err, fmt.Errorf("node rank: want 0 to %d for %s, got %d", cfg.MaxNodes-1, nodes(*cfg), r.NodeRank))
	}
	return err
}

// checkC10d checks the address of the host that holds the rendezvous. With port 0 the
// job has no other.
func (cfg *Config) checkC10d() error {
	_, port, err := hostport.Split(cfg.Rendezvous.Endpoint, -1)
	switch {
	case cfg.Rendezvous.settings.StoreType == "file" && cfg.MaxNodes > 1:
		err = c10d.ErrFileStore
	case err != nil:
	case cfg.Rendezvous.Standalone && cfg.MinNodes > 1 && cfg.MinNodes <= cfg.MaxNodes:
		err = fmt.Errorf("Rendezvous.Standalone is a job of one host, and %s; leave one of them out", nodes(*cfg))
	case port == 0 && cfg.MinNodes > 1 && cfg.MinNodes <= cfg.MaxNodes:
		err = fmt.Errorf(portZero, nodes(*cfg), cfg.Rendezvous.Endpoint)
	case port == 0:
		cfg.MaxNodes = 1
	}
	return err
}

// What is not in Default, since it counts only for jobs of several hosts.
// Source: get_args_parser in torch/distributed/run.py.
const (
	noRunID           = "none"
	defaultMasterPort = 29500
)

// envNoSharedStore makes worker rank 0 serve the workers' store.
const envNoSharedStore = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

const portZero = "%s, and the endpoint %s has port 0, which no other host can know; name a port"

// meetsAtLoopback reports whether the hosts are to meet at an address that each of them
// has for itself. An etcd may well have a member, or a proxy, on every host.
func (cfg *Config) meetsAtLoopback() bool {
	host, _, err := hostport.Split(cfg.Rendezvous.Endpoint, 0)
	ip := net.ParseIP(host)
	return err == nil && !strings.HasPrefix(cfg.Rendezvous.Backend, "etcd") &&
		(host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()))
}

// LookupEnv reads a variable of the job's environment, Env. As everywhere the
// last of several entries of one name counts.
func (cfg *Config) LookupEnv(name string) (string, bool) {
	if cfg.Env == nil {
		return os.LookupEnv(name)
	}
	for _, entry := range slices.Backward(cfg.Env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// nodes shows the number of hosts as --nnodes has it.
func nodes(cfg Config) string {
	if cfg.MinNodes == cfg.MaxNodes {
		return fmt.Sprintf("nnodes=%d", cfg.MaxNodes)
	}
	return fmt.Sprintf("nnodes=%d:%d", cfg.MinNodes, cfg.MaxNodes)
}

// NewRunID returns a random UUID (version 4). It only has to differ from other
// jobs', nobody has to be unable to guess it.
func NewRunID() string {
	hi, lo := rand.Uint64(), rand.Uint64()
	hi = hi&^0xf000 | 0x4000
	lo = lo&^(3<<62) | 2<<62
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xffff, lo>>48, lo&(1<<48-1))
}

// Settings returns the rendezvous' settings: those of its Conf, and the environment's
// token unless Conf names a file with one.
func (cfg *Config) Settings() (rendezvous.Settings, error) {
	settings, err := rendezvous.ParseSettings(cfg.Rendezvous.Backend, cfg.Rendezvous.Conf)
	if settings.TokenFile == "" {
		token, bad := auth.TokenOf(cfg.LookupEnv)
		settings.Token, err = token, errors.Join(err, bad)
	}
	return settings, err
}

// withoutSecrets is the environment for workers and whatever else the agent starts.
func withoutSecrets(env []string) []string {
	if env == nil {
		env = os.Environ()
	}
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		conf, ok := strings.CutPrefix(entry, "PET_RDZV_CONF=")
		return ok && auth.HideSecrets(conf) != conf || strings.HasPrefix(entry, auth.TokenVariable+"=") ||
			strings.HasPrefix(entry, envTemplate+"=")
	})
}
