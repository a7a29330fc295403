package runline

import (
	"strings"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/launch"
)

// kind says how the text of an option is read.
type kind uint8

const (
	kindText  kind = iota
	kindInt        // Python's int()
	kindFloat      // Python's float()
	kindList       // comma separated, ",," is a literal comma
	kindEach       // may be repeated; the texts are joined by NUL, which no argument has
	kindFlag       // no argument; its variable is an integer
)

// An option is one row of the table from which command line, environment, help,
// completion and most of the configuration are made.
type option struct {
	name    string // with dashes; underscores are accepted as well
	short   byte   // 0 if there is none
	kind    kind
	env     string // "" if no variable stands for it
	def     string // default; see unset
	unset   bool   // the default is "not given" rather than def
	choices []string
	own     bool // muster's, not torchrun's: never abbreviated
	group   group
	arg     string // what stands for the argument in the help
	help    string
	// to returns the field that gets the value. nil: a method of reader reads it.
	to func(*launch.Config) any
}

// group orders the help.
type group uint8

const (
	groupWorkers group = iota
	groupProgram
	groupFailure
	groupOutput
	groupDevices
	groupRendezvous
	groupOwn
	groupOther
	groups
)

func (g group) String() string {
	return [groups]string{
		"Workers", "What they run", "Failures and stopping", "Output and logs",
		"Devices and CPUs", "Rendezvous", "Not in torchrun", "Other",
	}[g]
}

// options is every option of `muster run`.
// Source: get_args_parser in torch/distributed/run.py; the order is its order,
// then our own.
var options = [...]option{
	{name: "nnodes", env: "PET_NNODES", def: "1:1", arg: "N|MIN:MAX",
		help: "hosts that take part, or their smallest and largest number"},
	{name: "nproc-per-node", env: "PET_NPROC_PER_NODE", def: "1", arg: "N|WORD",
		help: "workers on this host: a number, gpu or xpu (one per device), cpu (one per core) or auto (devices if there " +
			"are any, else cores)"},

	{name: "rdzv-backend", env: "PET_RDZV_BACKEND", def: "static", group: groupRendezvous, arg: "NAME",
		to: func(c *launch.Config) any { return &c.Rendezvous.Backend },
		help: "how hosts meet: static, c10d, etcd or quorum; with etcd or quorum the job survives the loss of any host. " +
			"A job of one host needs none of these options"},
	{name: "rdzv-endpoint", env: "PET_RDZV_ENDPOINT", group: groupRendezvous, arg: "HOST[:PORT]",
		help: "where they meet: a host of the job (c10d), members of an etcd cluster with commas between, or three or " +
			"five hosts of the job (quorum)"},
	{name: "rdzv-id", env: "PET_RDZV_ID", def: "none", group: groupRendezvous, arg: "ID",
		help: "the job's name, the same on every host (default: a new one for a job of one host)"},
	{name: "rdzv-conf", env: "PET_RDZV_CONF", group: groupRendezvous, arg: "K=V,...",
		help: "settings of the backend, such as join_timeout=600,last_call_timeout=30; keep_alive_interval times " +
			"keep_alive_max_attempt is how long a host may be silent; bind=ADDR and allow=CIDR,... guard the port, " +
			"open_workers_store=true opens the workers' store; token_file=PATH, or cacert, cert and key, say who may join; " +
			"user and password_file are for etcd, data_dir for quorum"},
	{name: "standalone", kind: kindFlag, env: "PET_STANDALONE",
		to:   func(c *launch.Config) any { return &c.Rendezvous.Standalone },
		help: "this host is the whole job; other rendezvous options are ignored, except --rdzv-id"},

	{name: "max-restarts", kind: kindInt, env: "PET_MAX_RESTARTS", def: "0", group: groupFailure, arg: "N",
		to:   func(c *launch.Config) any { return &c.MaxRestarts },
		help: "how often the workers are started again after a failure"},
	{name: "monitor-interval", kind: kindFloat, env: "PET_MONITOR_INTERVAL", def: "0.1",
		group: groupFailure, arg: "SECONDS",
		help: "accepted for torchrun's sake; a worker's end is noticed at once"},
	{name: "start-method", env: "PET_START_METHOD", def: "spawn",
		choices: startMethods, group: groupProgram, arg: "METHOD",
		help: "spawn, fork or forkserver; accepted for torchrun's sake, --run-path always starts a fresh interpreter"},
	{name: "event-log-handler", env: "PET_EVENT_LOG_HANDLER", def: "null", group: groupOutput, arg: "NAME",
		to:   func(c *launch.Config) any { return &c.Records.EventLogHandler },
		help: "where events go: null, console (JSON lines on stderr), file (see --event-log-file) or dynamic_rendezvous"},
	{name: "role", env: "PET_ROLE", def: "default",
		to:  func(c *launch.Config) any { return &c.Workers.Role },
		arg: "NAME", help: "role of the workers, in messages and role ranks"},
	{name: "module", short: 'm', kind: kindFlag, env: "PET_MODULE", group: groupProgram,
		help: "the script is a module, run as `python -m` does"},
	{name: "no-python", kind: kindFlag, env: "PET_NO_PYTHON", group: groupProgram,
		help: "the script is a program of its own, not run by Python"},
	{name: "run-path", kind: kindFlag, env: "PET_RUN_PATH", group: groupProgram,
		help: "run the script with runpy.run_path and record its exceptions; takes precedence over -m and --no-python"},
	{name: "log-dir", env: "PET_LOG_DIR", unset: true, group: groupOutput, arg: "DIR",
		to:   func(c *launch.Config) any { return &c.Logs.Dir },
		help: "where log files go (default: a new directory under $TMPDIR); /dev/null for none"},
	{name: "redirects", short: 'r', env: "PET_REDIRECTS", def: "0", group: groupOutput, arg: "STD",
		help: "streams that go into log files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, 0:3,1:2"},
	{name: "tee", short: 't', env: "PET_TEE", def: "0", group: groupOutput, arg: "STD",
		help: "streams that go into log files and, each line with a prefix, to the console"},
	{name: "log-line-prefix-template", env: "PET_LOG_LINE_PREFIX_TEMPLATE", group: groupOutput, arg: "TEXT",
		to: func(c *launch.Config) any { return &c.Logs.LinePrefixTemplate },
		help: "prefix of the lines of --tee; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced (default: " +
			"\"[${role_name}${local_rank}]:\")"},
	{name: "local-ranks-filter", env: "PET_LOCAL_RANKS_FILTER", group: groupOutput, arg: "N,...",
		help: "only these local ranks write to the console; log files are complete"},
	{name: "duplicate-stdout-filters", kind: kindList, env: "PET_DUPLICATE_STDOUT_FILTERS",
		unset: true, group: groupOutput, arg: "TEXT,...",
		to:   func(c *launch.Config) any { return &c.Logs.DuplicateStdoutFilters },
		help: "copy lines of stdout that contain one of these to filtered_stdout.log; write a comma as ,,"},
	{name: "duplicate-stderr-filters", kind: kindList, env: "PET_DUPLICATE_STDERR_FILTERS",
		unset: true, group: groupOutput, arg: "TEXT,...",
		to:   func(c *launch.Config) any { return &c.Logs.DuplicateStderrFilters },
		help: "the same for stderr"},
	{name: "node-rank", kind: kindInt, env: "PET_NODE_RANK", def: "0", group: groupRendezvous, arg: "N",
		to:   func(c *launch.Config) any { return &c.Rendezvous.NodeRank },
		help: "this host's rank; static only"},
	{name: "master-addr", env: "PET_MASTER_ADDR", def: "127.0.0.1", group: groupRendezvous, arg: "HOST",
		to:   func(c *launch.Config) any { return &c.Rendezvous.MasterAddr },
		help: "the host of rank 0; static only"},
	{name: "master-port", kind: kindInt, env: "PET_MASTER_PORT", unset: true, group: groupRendezvous, arg: "PORT",
		to:   func(c *launch.Config) any { return &c.Rendezvous.MasterPort },
		help: "the port on it; static only (default: a free one for a job of one host, else 29500)"},
	{name: "local-addr", env: "PET_LOCAL_ADDR", unset: true, group: groupRendezvous, arg: "HOST",
		to:   func(c *launch.Config) any { return &c.Rendezvous.LocalAddr },
		help: "the address at which other hosts reach this one (default: that of the interface that reaches the endpoint)"},
	{name: "logs-specs", unset: true, group: groupOutput, arg: "NAME",
		help: "only default: a Python plug-in cannot be loaded"},
	{name: "numa-binding", unset: true, choices: numaModes, group: groupDevices, arg: "MODE",
		to:   func(c *launch.Config) any { return &c.Workers.NUMABinding },
		help: "bind each worker to CPUs near its device: node, socket, exclusive or core-complex"},
	{name: "signals-to-handle", env: "PET_SIGNALS_TO_HANDLE", def: "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
		group: groupFailure, arg: "SIG,...",
		help: "signals that stop the job; workers get the one received"},
	{name: "shutdown-timeout", kind: kindFloat, env: "PET_SHUTDOWN_TIMEOUT",
		unset: true, group: groupFailure, arg: "SECONDS",
		help: "time between that signal and SIGKILL (default: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)"},
	{name: "virtual-local-rank", kind: kindFlag, env: "PET_VIRTUAL_LOCAL_RANK", group: groupDevices,
		to:   func(c *launch.Config) any { return &c.Workers.VirtualLocalRank },
		help: "every worker has LOCAL_RANK=0 and sees one device, its own"},
	{name: "print-completion", unset: true, choices: Shells, group: groupOther, arg: "SHELL",
		help: "print a completion script for bash, zsh or tcsh"},

	{name: "exit-code", env: "MUSTER_EXIT_CODE", def: "torchrun",
		choices: exitCodes, own: true, group: groupOwn, arg: "WHICH",
		help: "exit status of a failed job: torchrun (1) or worker (that of the worker that failed first)"},
	{name: "report", env: "MUSTER_REPORT", unset: true, choices: reports, own: true, group: groupOwn, arg: "KIND",
		help: "how the report of a failed job is printed: muster, torchrun (PyTorch's block) or none; report.json is " +
			"written anyway (default: muster, and torchrun where the program is called that)"},
	{name: "event-log-file", env: "MUSTER_EVENT_LOG_FILE", own: true, group: groupOwn, arg: "PATH",
		to: func(c *launch.Config) any { return &c.Records.EventLogFile },
		help: "append events to this file as JSON lines, whatever the handler is; several agents may share it (default: " +
			"none, and events.jsonl in the log directory with `--event-log-handler file`)"},
	{name: "on-event", env: "MUSTER_ON_EVENT", own: true, group: groupOwn, arg: "CMD",
		to: func(c *launch.Config) any { return &c.Records.OnEvent },
		help: "a command that sh runs for each start, hang, failure, host lost, restart and end of the job on this host, " +
			"with JSON on stdin; for 30 s at most, and the job does not wait for it until its end, and then for 30 s"},
	{name: "collapse", kind: kindFlag, env: "MUSTER_COLLAPSE", own: true, group: groupOwn,
		to: func(c *launch.Config) any { return &c.Logs.Collapse },
		help: "with --tee, write a line that several ranks of this host write within 0.1 s, equal to the last byte, " +
			"once: [default0-7]:"},
	{name: "ranks-filter", env: "MUSTER_RANKS_FILTER", own: true, group: groupOwn, arg: "RANKS",
		help: "only these global ranks write to the console, such as 0,5-7; log files are complete"},
	{name: "metrics-handler", env: "MUSTER_METRICS_HANDLER", def: "null",
		choices: metricsHandlers, own: true, group: groupOwn, arg: "NAME",
		to:   func(c *launch.Config) any { return &c.Records.MetricsHandler },
		help: "where TorchElastic's metrics go: null or console (stdout)"},
	{name: "title", unset: true, own: true, group: groupOwn, arg: "TEXT",
		help: "what the failure report and the status page call the job (default: the script)"},
	{name: "exit-barrier-timeout", kind: kindFloat, env: "MUSTER_EXIT_BARRIER_TIMEOUT", def: "300",
		own: true, group: groupOwn, arg: "SECONDS",
		to:   func(c *launch.Config) any { return &c.ExitBarrierTimeout },
		help: "how long a host that is done waits for the others"},
	{name: "helper-timeout", kind: kindFloat, env: "MUSTER_HELPER_TIMEOUT", def: "30",
		own: true, group: groupOwn, arg: "SECONDS",
		help: "how long what a worker leaves running after its success, such as an upload, may take; 0 for not at all"},
	{name: "restart-policy", env: "MUSTER_RESTART_POLICY", own: true, group: groupOwn, arg: "FILE",
		help: "rules (YAML) for what follows from a failure: start again, stop the job, or continue without the host; " +
			"check one with `muster policy check`"},
	{name: "preemption-signals", env: "MUSTER_PREEMPTION_SIGNALS", unset: true, own: true, group: groupOwn, arg: "SIG,...",
		help: "signals on which the whole job stops: every host's workers get it at the same moment and have " +
			"--shutdown-timeout, the exit status is 75 (default: none, or SIGTERM,SIGUSR1 where a scheduler says how the " +
			"hosts meet)"},
	{name: "hang-timeout", kind: kindFloat, env: "MUSTER_HANG_TIMEOUT", def: "0",
		own: true, group: groupOwn, arg: "SECONDS",
		to: func(c *launch.Config) any { return &c.HangTimeout },
		help: "the workers hang if for that long none on this host has written output or used a timer, and one at least " +
			"has not used the CPU, or none has begun or ended a collective while some are under way; auto learns the time from " +
			"the job; 0 for never"},
	{name: "hang-action", env: "MUSTER_HANG_ACTION", def: "kill",
		choices: hangActions, own: true, group: groupOwn, arg: "WHAT",
		help: "what to do then, after evidence is kept: kill (a failure, so restarts apply) or notify (only report it)"},
	{name: "collectives", env: "MUSTER_COLLECTIVES", def: "on",
		choices: []string{"on", "off"}, own: true, group: groupOwn, arg: "WHETHER",
		help: "whether workers can be asked what PyTorch's flight recorder has kept, so that a hang names the rank that " +
			"did not come to a collective; off leaves the workers' environment as torchrun has it"},
	{name: "autopsy-timeout", kind: kindFloat, env: "MUSTER_AUTOPSY_TIMEOUT", def: "5",
		own: true, group: groupOwn, arg: "SECONDS",
		help: "how long evidence (stacks, threads) of workers that hang or miss a deadline is collected at most before " +
			"they are killed; 0 for not at all"},
	{name: "warm", kind: kindFlag, env: "MUSTER_WARM", own: true, group: groupOwn,
		to: func(c *launch.Config) any { return &c.Workers.Warm },
		help: "start the workers as forks of a Python process that has imported what they import, which is learnt, so " +
			"that a restart takes a fraction of a second; where that is not safe they start as usual (Linux only)"},
	{name: "live", kind: kindFlag, env: "MUSTER_LIVE", own: true, group: groupOwn,
		to: func(c *launch.Config) any { return &c.Live },
		help: "workers that use muster.live continue when others are lost or join, with what they have in memory, " +
			"instead of starting again; muster on all hosts (experimental, as what PyTorch has for it)"},
	{name: "live-timeout", kind: kindFloat, env: "MUSTER_LIVE_TIMEOUT", def: "30",
		own: true, group: groupOwn, arg: "SECONDS",
		to:   func(c *launch.Config) any { return &c.LiveTimeout },
		help: "how long a worker may take then to pause, and to resume; one that takes longer is killed"},
	{name: "health-addr", env: "MUSTER_HEALTH_ADDR", own: true, group: groupOwn, arg: "[HOST:]PORT",
		to: func(c *launch.Config) any { return &c.Health.Addr },
		help: "serve /healthz, /readyz, /metrics, /v1/state and a status page; a port alone is at 127.0.0.1 (default: " +
			"$TORCHELASTIC_HEALTH_CHECK_PORT, else nowhere)"},
	{name: "health-names", kind: kindList, env: "MUSTER_HEALTH_NAMES",
		unset: true, own: true, group: groupOwn, arg: "NAME,...",
		to: func(c *launch.Config) any { return &c.Health.Names },
		help: "further host names that requests there may use, such as a proxy's; addresses, localhost and this host's " +
			"own name always work"},
	{name: "health-check", env: "MUSTER_HEALTH_CHECK", own: true, group: groupOwn, arg: "CMD",
		to: func(c *launch.Config) any { return &c.HealthCheck },
		help: "a command that must succeed before this host joins the job, run by sh; a host that fails it does not join " +
			"and exits with status 69"},
	{name: "devices", kind: kindInt, env: "MUSTER_DEVICES", unset: true, own: true, group: groupOwn, arg: "N",
		help: "how many devices this host has, for gpu, xpu and auto; 0 for none"},
	{name: "config", env: "MUSTER_CONFIG", own: true, group: groupOwn, arg: "FILE",
		help: "options in a file (YAML), by their names; the command line and variables override it"},
	{name: "env", kind: kindEach, unset: true, own: true, group: groupOwn, arg: "K[=V]",
		help: "a variable for the workers, on top of muster's environment; may be repeated. K alone takes over the " +
			"present value, and keeps a secret out of the command line"},
	{name: "env-file", kind: kindEach, env: "MUSTER_ENV_FILE", unset: true, own: true, group: groupOwn, arg: "FILE",
		help: "a file of such variables: KEY=VALUE on each line, taken as it stands; blank lines and lines that begin " +
			"with # do not count. May be repeated; --env overrides it"},
	{name: "log-format", env: "MUSTER_LOG_FORMAT", def: "text",
		choices: logFormats, own: true, group: groupOwn, arg: "FORMAT",
		help: "how muster writes its own log lines: text, or json (one object on each line)"},
	{name: "verbose", short: 'v', kind: kindFlag, env: "MUSTER_VERBOSE", own: true, group: groupOwn,
		help: "log everything, as LOGLEVEL=DEBUG does"},
	{name: "quiet", short: 'q', kind: kindFlag, env: "MUSTER_QUIET", own: true, group: groupOwn,
		help: "log errors only, as LOGLEVEL=ERROR does"},
	{name: "dry-run", kind: kindFlag, own: true, group: groupOther,
		help: "print every setting and where it comes from, as `muster explain` does; run nothing"},
	{name: "version", kind: kindFlag, own: true, group: groupOther,
		help: "print the version"},
	{name: "help", short: 'h', kind: kindFlag, group: groupOther,
		help: "print this help"},
}

var (
	startMethods = []string{"spawn", "fork", "forkserver"}
	numaModes    = []string{"node", "socket", "exclusive", "core-complex"}
	Shells       = []string{"bash", "zsh", "tcsh"}
	exitCodes    = []string{"torchrun", codeOfWorker}

	reports         = []string{"muster", Torchrun, "none"}
	metricsHandlers = []string{"null", "console"}
	hangActions     = []string{"kill", "notify"}
	logFormats      = []string{"text", "json"}
)

// codeOfWorker as --exit-code means that a failed job exits as the worker that failed first.
const codeOfWorker = "worker"

// takesArg reports whether the option is followed by an argument.
func (o *option) takesArg() bool { return o.kind != kindFlag }

// String is how argparse names the option in its messages.
func (o *option) String() string {
	s := "--" + o.name
	if strings.Contains(o.name, "-") {
		s += "/--" + strings.ReplaceAll(o.name, "-", "_")
	}
	if o.short != 0 {
		s = "-" + string(o.short) + "/" + s
	}
	return s
}

// findOption finds the first option that fits, nil if none does.
func findOption(fits func(*option) bool) *option {
	for i := range options {
		if fits(&options[i]) {
			return &options[i]
		}
	}
	return nil
}

// byShort finds the option of -c.
func byShort(c byte) *option {
	return findOption(func(o *option) bool { return o.short == c && c != 0 })
}

// byName finds the option of --name. argparse knows each with dashes only and with underscores
// only; a mixture is not a worse.
func byName(name string) *option {
	name = strings.ReplaceAll(name, "_", "-")
	return findOption(func(o *option) bool { return o.name == name })
}

// byPrefix lists the options of torchrun that --prefix abbreviates.
func byPrefix(prefix string) (found []*option) {
	prefix = strings.ReplaceAll(prefix, "_", "-")
	for i := range options {
		o := &options[i]
		if !o.own && o.name != prefix && strings.HasPrefix(o.name, prefix) {
			found = append(found, o)
		}
	}
	return found
}

// nearest returns the option whose name is most like the typed one, or nil if
// none is alike.
func nearest(typed string) *option {
	names := make([]string, len(options))
	for i := range options {
		names[i] = options[i].name
	}
	return byName(text.Nearest(typed, names...))
}
