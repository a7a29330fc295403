package runline

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/host/devices"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process"
)

// A reader turns the values of one command line into a launch.Config and
// gathers what is wrong with them.
type reader struct {
	values
	line
	lookup   func(string) (string, bool) // environment
	root     fs.FS                       // where devices are looked for
	self     string                      // args[0]: how the program was started
	ask      bool                        // the scheduler, for what nobody has said
	schedule *schedule                   // what it said
	errs     []error
	warnings []string
	notes    []string // for information
}

func (r *reader) fail(format string, a ...any) { r.errs = append(r.errs, fmt.Errorf(format, a...)) }

func (r *reader) warn(format string, a ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, a...))
}

// argument reports a bad value in argparse's words.
func (r *reader) argument(name, format string, a ...any) {
	r.refuse(name, fmt.Errorf(format, a...))
}

func (r *reader) refuse(name string, err error) {
	r.errs = append(r.errs, byName(name).refuse(err, r.source(name)))
}

// source is where an option's value is from, as in told.from.
func (r *reader) source(name string) string {
	if all := r.sources(byName(name), r.lookup); len(all) > 0 {
		return all[0].from
	}
	return ""
}

// named adds to errors that know nothing of options where the values that they show are
// from.
func (r *reader) named(errs []error) []error {
	for i, err := range errs {
		if o := subject(err); o != nil {
			errs[i] = located(o.advise(err), r.source(o.name))
			continue
		}
		for j := range options {
			all := r.sources(&options[j], r.lookup)
			if len(all) == 0 || all[0].from == "" {
				continue
			}
			parts := strings.FieldsFunc(all[0].text, func(c rune) bool { return c == ',' || c == '=' })
			if slices.ContainsFunc(parts, func(part string) bool {
				return len(part) > 1 && strings.Contains(err.Error(), part)
			}) {
				errs[i] = located(errs[i], all[0].from)
			}
		}
	}
	return errs
}

// subject finds the option with whose name an error of launch.Resolve begins.
func subject(err error) *option {
	text := strings.TrimPrefix(err.Error(), "the ")
	return findOption(func(o *option) bool {
		name := strings.ReplaceAll(strings.Replace(o.name, "rdzv", "rendezvous", 1), "-", " ")
		rest, ok := strings.CutPrefix(text, name)
		return ok && o.to != nil && strings.HasPrefix(strings.TrimPrefix(rest, ":"), " ")
	})
}

// parsed reads an option's text, and reports each problem with it by itself.
func parsed[T any](r *reader, name string, parse func(string) (T, error)) T {
	value, err := parse(r.text(name))
	for _, err := range console.Split(err) {
		r.refuse(name, err)
	}
	return value
}

// config reads everything that has been given. It returns what could be read
// even if there are errors, so that launch.Resolve can look for more.
// Source: config_from_args in torch/distributed/run.py.
func (r *reader) config(cfg launch.Config) launch.Config {
	for i := range options {
		if o := &options[i]; o.to != nil {
			r.into(o.to(&cfg), o)
		}
	}
	nodes := parsed(r, "nnodes", parseNodes)
	cfg.MinNodes, cfg.MaxNodes = nodes[0], nodes[1]
	cfg.NprocPerNode = r.nproc()

	cfg.Rendezvous.Endpoint = strings.TrimSpace(r.text("rdzv-endpoint"))
	if r.isGiven("rdzv-id") {
		cfg.RunID = r.text("rdzv-id")
	}
	cfg.Rendezvous.Conf = r.conf()
	r.needNames(&cfg)
	if r.ask {
		r.fromScheduler(&cfg)
	}
	if cfg.RunID == "" && cfg.MaxNodes == 1 && r.isGiven("rdzv-id") { // as launch_agent does
		cfg.RunID = launch.NewRunID()
	}
	if cfg.Rendezvous.Backend != "static" && !cfg.Rendezvous.Standalone {
		for _, name := range []string{"node-rank", "master-addr", "master-port"} {
			if r.isGiven(name) {
				r.warn("--%s is only used by --%s; ignored %s", name, "rdzv-backend=static", "for "+cfg.Rendezvous.Backend)
			}
		}
	}

	if rdzv := cfg.Rendezvous; rdzv.Backend == "quorum" && cfg.MaxNodes > 1 && rdzv.Endpoint != "" &&
		!strings.Contains(rdzv.Endpoint, ",") {
		r.warn("the quorum has one host, and the job ends if that host is lost; name three or five with --rdzv-endpoint")
	}

	r.seconds("monitor-interval", false) // checked, since nothing is polled at that pace
	r.restartPolicy(&cfg)
	cfg.ShutdownTimeout = r.shutdownTimeout()
	cfg.HelperTimeout = cmp.Or(r.seconds("helper-timeout", true), process.NoGrace)
	cfg.HangNotify = r.text("hang-action") == "notify"
	cfg.NoCollectives = r.text("collectives") == "off"
	cfg.AutopsyTimeout = cmp.Or(r.seconds("autopsy-timeout", true), launch.NoAutopsy)
	r.signals(&cfg)
	r.logs(&cfg.Logs)
	r.command(&cfg)
	if title := r.text("title"); title != "" {
		cfg.Workers.Title = title
	}
	r.threads(&cfg)
	r.ranksHere(&cfg, "local-ranks-filter", cfg.Logs.LocalRanksFilter)
	r.ranksHere(&cfg, "redirects", slices.Collect(maps.Keys(cfg.Logs.Redirects.ByRank)))
	r.ranksHere(&cfg, "tee", slices.Collect(maps.Keys(cfg.Logs.Tee.ByRank)))
	if ranks := cfg.Logs.RanksFilter; len(ranks) > 0 && cfg.MaxNodes == 1 { // else others may have any ranks
		r.ranksHere(&cfg, "ranks-filter", []int{ranks[0][0]})
	}
	if cfg.Logs.Collapse && !cfg.Logs.Tee.Any() {
		r.warn("--%s is only used by --%s; ignored %s", "collapse", "tee", "without it")
	}
	return cfg
}

// ranksHere warns of an option that names only ranks that no worker of this host has.
func (r *reader) ranksHere(cfg *launch.Config, name string, ranks []int) {
	if len(ranks) > 0 && slices.Min(ranks) >= cfg.NprocPerNode {
		r.warn("--%s: no worker here has one of these ranks, which go from 0 to %d", name, cfg.NprocPerNode-1)
	}
}

// needNames refuses empty names that launch.Config would take for its defaults, and torchrun does not.
func (r *reader) needNames(cfg *launch.Config) {
	rdzv := &cfg.Rendezvous
	meets := rdzv.Backend == "static" && rdzv.Endpoint == "" && (cfg.MaxNodes > 1 || r.isGiven("master-port"))
	unread := map[string]bool{"rdzv-backend": rdzv.Standalone, "master-addr": rdzv.Standalone || !meets}
	for _, name := range []string{"rdzv-backend", "master-addr", "event-log-handler", "logs-specs"} {
		if !unread[name] && r.isGiven(name) && r.text(name) == "" {
			r.argument(name, "'' is not a name; give one, or leave --%s out", name)
		}
	}
}

// conf reads --rdzv-conf. A text that hides another one, such as the option that hides the
// variable, must not hide what closes the job to others.
func (r *reader) conf() map[string]string {
	conf := parsed(r, "rdzv-conf", parseConf)
	all := r.sources(byName("rdzv-conf"), r.lookup)
	for i, hidden := range all {
		replaced, _ := parseConf(hidden.text)
		for _, key := range slices.Sorted(maps.Keys(replaced)) {
			if _, kept := conf[key]; !kept && auth.IsGuard(key) {
				by := cmp.Or(all[0].from, "--rdzv-conf")
				r.fail("%s replaces all of %s, and so the job would be without its %s; give that with %s, too",
					by, all[i].from, key, by)
			}
		}
	}
	return conf
}

// signals reads --signals-to-handle and --preemption-signals.
func (r *reader) signals(cfg *launch.Config) {
	var unknown []string
	parse := func(names string) (signals []syscall.Signal, err error) {
		signals, unknown, err = text.Signals(names)
		// Not nil, which would mean the default: with "" no signal is handled.
		return append([]syscall.Signal{}, signals...), err
	}
	cfg.SignalsText = r.text("signals-to-handle")
	cfg.SignalsToHandle = parsed(r, "signals-to-handle", parse)
	for _, name := range unknown {
		r.warn("--signals-to-handle: %s is not a signal; not handled", console.Quote(name))
	}
	if r.isSet("preemption-signals") {
		cfg.PreemptionSignals = parsed(r, "preemption-signals", parse)
		for _, name := range unknown {
			if name != "" {
				r.argument("preemption-signals", "%s is not a signal; give names such as SIGTERM,SIGUSR1", console.Quote(name))
			}
		}
	}
}

// into puts the value of an option into a field.
func (r *reader) into(field any, o *option) {
	switch field := field.(type) {
	case *string:
		*field = r.text(o.name)
	case *bool:
		*field = r.flag(o.name)
	case *int:
		*field = r.int(o.name)
	case *[]string:
		*field = r.list(o.name)
	case *time.Duration:
		*field = r.seconds(o.name, o.def == "0")
	}
}

// isGiven reports whether the option is on the command line, in the environment or in the
// config file.
func (r *reader) isGiven(name string) bool {
	return len(r.sources(byName(name), r.lookup)) > 0
}

// parseNodes reads --nnodes, N or MIN:MAX. It returns zeros if they are no numbers.
// Source: parse_min_max_nnodes in torch/distributed/run.py.
func parseNodes(text string) (leastMost [2]int, err error) {
	first, second, ranged := strings.Cut(text, ":")
	least, err := parseInt(first)
	most := least
	if err == nil && ranged {
		most, err = parseInt(second)
	}
	if err != nil {
		return leastMost, fmt.Errorf("%s is not in N or MIN:MAX format", console.Quote(text))
	}
	if least < 1 || least > most {
		return leastMost, console.Refusal(
			fmt.Errorf("min_nodes must be > 0 and <= max_nodes, got min_nodes=%d, max_nodes=%d",
				least, most),
			console.Quote(text)+" is not a number of hosts; give at least 1, as N or as MIN:MAX with the smaller first")
	}
	return [2]int{least, most}, nil
}

// nproc reads --nproc-per-node, a number or a word. It returns 1 after an error.
// Source: determine_local_world_size in torch/distributed/run.py.
func (r *reader) nproc() int { return max(1, parsed(r, "nproc-per-node", r.count)) }

// count is how many workers a number or a word means.
func (r *reader) count(text string) (n int, err error) {
	if n, err := parseInt(text); err == nil {
		if n < 1 {
			err = fmt.Errorf("at least one worker is needed, got %d; want 1 or more", n)
		}
		return n, err
	}
	switch text {
	case "gpu", "xpu", "auto":
		n, err = r.devices(text)
	case "cpu":
	default:
		return 0, fmt.Errorf("unsupported value %s; want a number, auto, cpu, gpu or xpu", console.Quote(text))
	}
	switch {
	case n > 0 || err != nil:
	case text == "gpu":
		//lint:ignore ST1005 torchrun's words
		return 0, fmt.Errorf("Cuda is not available: no NVIDIA or AMD GPU found%s; --devices N says how many there are",
			r.hiddenBy("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))
	case text == "xpu":
		//lint:ignore ST1005 torchrun's words
		return 0, fmt.Errorf("Xpu is not available: no Intel GPU found%s; --devices N says how many there are",
			r.hiddenBy("ZE_AFFINITY_MASK"))
	default:
		var cpus []int
		cpus, err = devices.AllowedCPUs()
		n = len(cpus)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", text, err)
	}
	return n, nil
}

// devices counts them, or takes --devices' word for it.
func (r *reader) devices(word string) (int, error) {
	if r.isSet("devices") {
		n := r.int("devices")
		if n < 0 {
			return 0, fmt.Errorf("--devices must be >= 0, got %d", n)
		}
		return n, nil
	}
	return devices.System{Root: r.root, Lookup: r.lookup}.Count(word)
}

// hiddenBy names the variables that may be the reason why no device was found.
func (r *reader) hiddenBy(names ...string) string {
	var set []string
	for _, name := range names {
		if value, ok := r.lookup(name); ok {
			set = append(set, name+"="+console.Quote(value))
		}
	}
	if set == nil {
		return ""
	}
	return " (with " + strings.Join(set, ", ") + ")"
}

// parseConf reads --rdzv-conf, k=v,k=v. A value may contain '='.
// Source: _parse_rendezvous_config in rendezvous/utils.py.
func parseConf(text string) (map[string]string, error) {
	conf := map[string]string{}
	text = strings.TrimSpace(text)
	if n := len(text); n > 1 && (text[0] == '\'' || text[0] == '"') && text[n-1] == text[0] {
		text = text[1 : n-1] // quotes that no shell has taken away, as from a list in YAML
	}
	if text == "" {
		return conf, nil
	}
	var errs []error
	last, secret, masked := "", false, false
	for pair := range strings.SplitSeq(text, ",") {
		key, value, hasValue := strings.Cut(pair, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if last == "allow" && !hasValue && key != "" {
			conf[last] += "," + key // the one key whose value is a list
			continue
		}
		last = key
		secret = auth.IsSecret(key) || secret && !hasValue
		switch {
		case secret && !hasValue:
			if !masked {
				errs = append(errs, fmt.Errorf("%s is not in <key1>=<value1>,...,<keyN>=<valueN> format: a part with a secret "+
					"(***) has no key or no value; if the secret has a comma, use password_file or token_file",
					console.Quote(auth.HideSecrets(text))))
			}
			masked = true
		case key == "":
			errs = append(errs, fmt.Errorf("%s is not in <key1>=<value1>,...,<keyN>=<valueN> format: a key is missing",
				console.Quote(auth.HideSecrets(text))))
		case value == "":
			errs = append(errs, console.Refusal(fmt.Errorf("the option %s must have a value specified", console.Quote(key)),
				"the key "+console.Quote(key)+" has no value; write KEY=VALUE,KEY=VALUE"))
		case conf[key] != "" && auth.IsGuard(key):
			errs = append(errs, fmt.Errorf("the option %s is given twice", console.Quote(key)))
		default:
			conf[key] = value
		}
	}
	return conf, errors.Join(errs...)
}

// seconds turns a positive number of seconds into a duration, and with orNone also 0, which means
// that there is no such time.
func (r *reader) seconds(name string, orNone bool) time.Duration {
	if learned, ok := r.values[name].(time.Duration); ok {
		return learned
	}
	s, ok := r.values[name].(float64)
	if !ok || s == 0 && orNone {
		return 0 // a text that was not a number has been reported
	}
	if !(s > 0 && s <= maxSeconds) {
		r.argument(name, "must be a number of seconds > 0 and at most %d, got %v", int64(maxSeconds), s)
		return 0
	}
	return max(time.Duration(s*float64(time.Second)), 1)
}

// maxSeconds is a century: further than any job runs, within time.Duration.
const maxSeconds = 100 * 365 * 24 * 3600

// envShutdownTimeout stands in for --shutdown-timeout.
const envShutdownTimeout = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

// shutdownTimeout reads --shutdown-timeout or what stands in for it.
func (r *reader) shutdownTimeout() time.Duration {
	const env = envShutdownTimeout
	s, given := r.values["shutdown-timeout"].(float64)
	name := "--shutdown-timeout"
	if !given {
		text, ok := r.lookup(env)
		if !ok {
			return process.DefaultGrace
		}
		n, err := parseInt(text)
		if err != nil {
			r.errs = append(r.errs, console.Refusal(fmt.Errorf("%s: %w", env, err),
				env+": "+console.Plain(err)+"; give seconds"))
			return 0
		}
		s, name = float64(n), env
	}
	if !(s >= 0 && s <= maxSeconds) {
		err := fmt.Errorf("%s must be non-negative and at most %d, got %v", name, int64(maxSeconds), s)
		r.errs = append(r.errs, located(byName("shutdown-timeout").advise(err), r.source("shutdown-timeout")))
		return 0
	}
	return cmp.Or(time.Duration(s*float64(time.Second)), process.NoGrace)
}

// logs reads where output goes.
func (r *reader) logs(cfg *logs.Config) {
	cfg.Redirects, cfg.Tee = parsed(r, "redirects", logs.ParseStd), parsed(r, "tee", logs.ParseStd)
	if cfg.LinePrefixTemplate == "" {
		cfg.LinePrefixTemplate, _ = r.lookup("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
	}
	if r.text("ranks-filter") != "" {
		cfg.RanksFilter = parsed(r, "ranks-filter", text.ParseRankSet)
	}
	cfg.LocalRanksFilter = parsed(r, "local-ranks-filter", parseRanks)
	if name := cmp.Or(r.text("logs-specs"), "default"); name != "default" {
		r.argument("logs-specs", "Could not find entrypoint under 'torchrun.logs_specs[%s]' key: Python plug-ins cannot "+
			"be loaded; use --log-dir, --redirects and --tee", name)
	}
}

// parseRanks reads a comma-separated list of local ranks; nil for "".
func parseRanks(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var ranks []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := parseInt(part)
		if err != nil {
			err := fmt.Errorf("must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2, got %s",
				console.Quote(text))
			return nil, console.Refusal(err, console.Quote(text)+" is not a list of local ranks; give one such as 0,1,2")
		}
		ranks = append(ranks, n)
	}
	return ranks, nil
}

// threads gives every worker its share of the cores for its own threads, unless
// the number is given. torchrun gives them one.
func (r *reader) threads(cfg *launch.Config) {
	if _, ok := r.lookup("OMP_NUM_THREADS"); ok || cfg.NprocPerNode < 2 {
		return
	}
	cpus, err := devices.AllowedCPUs()
	if err != nil {
		return
	}
	usable := len(cpus)
	if quota := cgroup.CPUQuota(r.root); quota > 0 {
		usable = min(usable, quota)
	}
	share := max(1, usable/cfg.NprocPerNode)
	cfg.Workers.OMPNumThreads = strconv.Itoa(share)
	r.notes = append(r.notes, fmt.Sprintf("OMP_NUM_THREADS is not set: each of the %d workers gets %d, its share of "+
		"%d CPUs", cfg.NprocPerNode, share, usable))
}

// restartPolicy reads --restart-policy. Its max_restarts counts where nobody has said
// another number.
func (r *reader) restartPolicy(cfg *launch.Config) {
	const name = "restart-policy"
	if r.text(name) == "" {
		return
	}
	p := parsed(r, name, LoadPolicy)
	if cfg.Policy = p; p == nil {
		return
	}
	if p.MaxRestarts >= 0 && !r.isGiven("max-restarts") {
		cfg.MaxRestarts = p.MaxRestarts
	}
	for _, note := range p.Notes(cfg.MaxRestarts) {
		r.warn("--%s: %s", name, note)
	}
}

// LoadPolicy is policy.Load with the file in each error.
func LoadPolicy(file string) (*policy.Policy, error) {
	p, err := policy.Load(file)
	return p, unreadable(file, "a policy", err)
}
