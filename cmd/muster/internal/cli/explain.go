package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/launch"
)

const explainHelp = `usage: muster explain [options] training_script [training_script_args...]

Takes the command line of muster run, and prints every setting with its value and where
that comes from: the command line, a variable, the scheduler that started this process
(Slurm, MPI, LSF, PBS, Kubernetes), or the default. It runs nothing.
`

// explain is `muster explain`.
func (p program) explain(_ context.Context, args []string) int {
	l, errs := parseLine(args)
	if l.asked("help") {
		io.WriteString(p.stdout, explainHelp)
		return exitOK
	}
	return p.explainLine(l, errs)
}

// explainLine prints what a command line means. errs is what is wrong with it.
func (p program) explainLine(l line, errs []error) int {
	cfg := launch.Config{Env: p.env, Stdout: p.stdout, Stderr: p.stderr}
	r, cfg, bad := p.read(l, cfg)
	if errs = append(errs, bad...); errs != nil {
		return p.usage(errs)
	}
	writeSettings(p.stdout, r.settings(&cfg))
	for _, text := range append(r.warnings, r.notes...) {
		fmt.Fprintf(p.stdout, "note: %s\n", text)
	}
	return exitOK
}

// A setting is one line of explain.
type setting struct{ name, value, from string }

// settings lists every option as it is in effect, and what follows from them.
func (r *reader) settings(cfg *launch.Config) []setting {
	var all []setting
	for i := range options {
		o := &options[i]
		switch o.kind {
		case kindShell, kindHelp, kindVersion:
			continue
		}
		if o.name == "dry-run" {
			continue
		}
		s := setting{o.name, r.shown(o), r.from(o)}
		r.effect(&s, cfg)
		all = append(all, s)
	}
	if cfg.Workers.Entrypoint != "" {
		all = append(all, setting{"command", shellWords(append([]string{cfg.Workers.Entrypoint}, cfg.Workers.Args...)), r.pythonFrom()})
	}
	if cfg.Workers.OMPNumThreads != "" {
		all = append(all, setting{"OMP_NUM_THREADS", cfg.Workers.OMPNumThreads, "a worker's share of the CPUs"})
	}
	return all
}

// shown is the text of an option's value before anything is made of it.
func (r *reader) shown(o *option) string {
	text, ok := r.given[o]
	if !ok && o.env != "" {
		text, ok = r.lookup(o.env)
	}
	switch {
	case ok && o.name == "rdzv-conf":
		return auth.HideSecrets(text)
	case ok && o.kind == kindEach:
		return hideValues(strings.Split(text, "\x00"))
	case !ok && o.kind == kindFlag:
		return "no"
	case o.kind == kindFlag:
		return map[bool]string{true: "yes", false: "no"}[r.flag(o.name)]
	case !ok:
		return o.def
	}
	return text
}

// from says where an option's value comes from.
func (r *reader) from(o *option) string {
	if _, ok := r.given[o]; ok {
		return "command line"
	}
	if o.env != "" {
		if _, ok := r.lookup(o.env); ok {
			return o.env
		}
	}
	if t := r.taken(o.name); t != nil {
		return t.from + " (" + r.schedule.scheduler + ")"
	}
	return "default"
}

// taken is what the scheduler has said of an option, nil if nothing.
func (r *reader) taken(name string) *taken {
	if r.schedule == nil {
		return nil
	}
	i := slices.IndexFunc(r.schedule.taken, func(t taken) bool { return t.option == name })
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
		if !r.isGiven("rdzv-id") && cfg.RunID != s.value {
			set("(a new one)", r.why(cfg))
		}
	case "rdzv-conf":
		r.addedConf(s, cfg)
	case "health-addr":
		if text, ok := r.lookup(envHealthPort); ok && s.value == "" {
			set(text, envHealthPort)
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

// envHealthPort stands in for --health-addr.
const envHealthPort = health.EnvPort

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

// pythonFrom says where the interpreter was found.
func (r *reader) pythonFrom() string {
	if r.flag("no-python") && !r.flag("run-path") {
		return "--no-python"
	}
	for _, name := range []string{"PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX"} {
		if text, _ := r.lookup(name); text != "" {
			return name
		}
	}
	return "PATH"
}

// writeSettings writes settings in columns.
func writeSettings(w io.Writer, settings []setting) {
	rows := [][]string{{"SETTING", "VALUE", "FROM"}}
	for _, s := range settings {
		rows = append(rows, []string{s.name, cmp.Or(printable(s.value), "-"), printable(s.from)})
	}
	_ = writeColumns(w, "", maxColumn, rows)
}

// maxColumn is how long a value may be to make the others' column as wide.
const maxColumn = 40

// shellWords joins words so that a shell would take them apart again.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		plain := word != "" && !strings.ContainsFunc(word, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@%", r))
		})
		if quoted[i] = word; !plain {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
