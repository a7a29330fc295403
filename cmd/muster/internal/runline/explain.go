package runline

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/launch"
)

// Explain is `muster explain`.
func (p Program) Explain(_ context.Context, args []string) int {
	l, errs := parseLine(args)
	_, err := os.Stat(l.script)
	if l.asked("help") || err != nil && slices.Equal(args, []string{l.script, "--help"}) {
		return p.Print(command.Usage("explain"))
	}
	return p.explainLine(l, errs)
}

// explainLine prints what a command line means. errs is what is wrong with it.
func (p Program) explainLine(l line, errs []error) int {
	cfg := launch.Config{Env: p.env, Stdout: p.Stdout, Stderr: p.Stderr}
	r, cfg, bad := p.read(l, cfg)
	if errs = append(errs, bad...); errs != nil {
		return p.usage(errs)
	}
	rows := [][]string{{"SETTING", "VALUE", "FROM"}}
	for _, s := range r.settings(&cfg) {
		rows = append(rows, []string{s.name, cmp.Or(console.Printable(s.value), "-"), console.Printable(s.from)})
	}
	var b strings.Builder
	_ = text.Columns(&b, "", console.MaxColumn, rows)
	for _, text := range append(r.warnings, r.notes...) {
		fmt.Fprintf(&b, "note: %s\n", text)
	}
	return p.Print(b.String())
}

// A setting is one line of explain: an option or a variable, its value, and where that is from.
type setting struct{ name, value, from string }

// settings lists every option as it is in effect, and what follows from them.
func (r *reader) settings(cfg *launch.Config) []setting {
	var all []setting
	for i := range options {
		o := &options[i]
		if o.group == groupOther { // they print something and stop
			continue
		}
		s := setting{o.name, r.shown(o), r.from(o)}
		r.effect(&s, cfg)
		all = append(all, s)
	}
	if cfg.Workers.Entrypoint != "" {
		from := "--no-python"
		if !r.flag("no-python") || r.flag("run-path") {
			_, from, _ = r.python()
		}
		all = append(all, setting{"command",
			console.ShellWords(append([]string{cfg.Workers.Entrypoint}, cfg.Workers.Args...)), from})
	}
	if cfg.Workers.OMPNumThreads != "" {
		all = append(all, setting{"OMP_NUM_THREADS", cfg.Workers.OMPNumThreads, "a worker's share of the CPUs"})
	}
	return all
}

// shown is the text of an option's value before anything is made of it.
func (r *reader) shown(o *option) string {
	all := r.sources(o, r.lookup)
	switch {
	case o.kind == kindFlag:
		return map[bool]string{true: "yes", false: "no"}[r.flag(o.name)]
	case len(all) == 0:
		return o.def
	case o.name == "rdzv-conf":
		return auth.HideSecrets(all[0].text)
	case o.kind == kindEach:
		return text.CommandLine(r.list(o.name))
	}
	return all[0].text
}

// from says where an option's value comes from.
func (r *reader) from(o *option) string {
	var from []string
	for _, s := range r.sources(o, r.lookup) {
		from = append(from, cmp.Or(s.from, "command line"))
	}
	switch {
	case o.kind == kindEach && len(from) > 0:
		return strings.Join(from, ", ")
	case len(from) > 0:
		return from[0]
	}
	if t := r.taken(o.name); t != nil {
		return t.from + " (" + r.schedule.scheduler + ")"
	}
	return "default"
}

// taken is what the scheduler has said of an option, nil if nothing.
func (r *reader) taken(name string) *setting {
	if r.schedule == nil {
		return nil
	}
	i := slices.IndexFunc(r.schedule.taken, func(t setting) bool { return t.name == name })
	if i < 0 {
		return nil
	}
	return &r.schedule.taken[i]
}

// effect replaces the value by what has become of it.
func (r *reader) effect(s *setting, cfg *launch.Config) {
	set := func(value, why string) {
		if value != "" && value != s.value {
			if s.value != "" && s.from != "default" {
				why = s.value + " by " + s.from
			}
			s.value, s.from = value, cmp.Or(why, s.from)
		}
	}
	if t := r.taken(s.name); t != nil {
		s.value = t.value
		return
	}
	switch s.name {
	case "max-restarts":
		set(strconv.Itoa(cfg.MaxRestarts), "--restart-policy")
	case "nproc-per-node":
		set(strconv.Itoa(cfg.NprocPerNode), "")
	case "rdzv-backend":
		set(cfg.Rendezvous.Backend, r.why(cfg))
	case "rdzv-endpoint":
		set(cfg.Rendezvous.Endpoint, r.why(cfg))
	case "rdzv-id":
		if cfg.RunID == s.value {
			return
		}
		set(map[bool]string{true: "none", false: "(a new one)"}[cfg.RunID == "none"], r.why(cfg))
	case "rdzv-conf":
		r.addedConf(s, cfg)
	case "health-addr":
		if text, ok := r.lookup(health.EnvPort); ok && s.value == "" {
			set(text, health.EnvPort)
		}
	case "shutdown-timeout":
		from := "default"
		if _, ok := r.lookup(envShutdownTimeout); ok {
			from = envShutdownTimeout
		}
		set(strconv.FormatFloat(max(cfg.ShutdownTimeout, 0).Seconds(), 'f', -1, 64), from)
	case "log-line-prefix-template":
		if s.value == "" && cfg.Logs.LinePrefixTemplate != "" {
			set(cfg.Logs.LinePrefixTemplate, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
		}
	case "log-dir":
		set(cmp.Or(cfg.Logs.Dir, "(a new directory)"), "")
	}
}

// addedConf adds to --rdzv-conf what the scheduler has added.
func (r *reader) addedConf(s *setting, cfg *launch.Config) {
	given, _ := parseConf(s.value)
	var added []string
	for _, key := range slices.Sorted(maps.Keys(cfg.Rendezvous.Conf)) {
		if _, ok := given[key]; !ok {
			added = append(added, auth.HideSecrets(key+"="+cfg.Rendezvous.Conf[key]))
		}
	}
	switch {
	case added == nil:
	case s.value == "":
		s.value, s.from = strings.Join(added, ","), r.why(cfg)
	default:
		s.value += "," + strings.Join(added, ",")
		s.from += ", the rest from " + r.why(cfg)
	}
}

// why says why the rendezvous is not that of the options.
func (r *reader) why(cfg *launch.Config) string {
	switch {
	case cfg.Rendezvous.Standalone:
		return "--standalone"
	case r.schedule != nil && cfg.MaxNodes > 1:
		return r.schedule.scheduler
	case cfg.MaxNodes == 1:
		return "a job of one host"
	}
	return "default"
}
