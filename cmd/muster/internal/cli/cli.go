// Package cli is muster's command line: it turns arguments and environment into
// a launch.Config and runs it. How the arguments are read is dictated by
// Python's argparse, because any torchrun command line must work unchanged.
//
// One table (options) is the source of parsing, environment variables, help and
// completion. A line is taken apart (parseLine), every option is weighed between
// command line, variable and default (weigh), the values are read into a Config
// (reader), and launch.Resolve decides the rest. Each step returns all that is
// wrong; what was found is reported together.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/procfs"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
)

// torchrunName is the name under which the program behaves as torchrun does.
const torchrunName = "torchrun"

// Run runs the program started as args[0] and returns its exit status. It is
// what main calls; nothing in it ends the process but `muster watchdog --kill-self`.
func Run(ctx context.Context, args []string, stdin, stdout, stderr *os.File) int {
	p := program{stdin: stdin, stdout: stdout, stderr: stderr, launch: start}
	if len(args) > 0 {
		p.self, args = args[0], args[1:]
	}
	if filepath.Base(p.self) == torchrunName {
		p.name = torchrunName
		return p.run(ctx, args)
	}
	return p.command(ctx, args)
}

// A program is one start of the binary.
type program struct {
	self                  string // args[0]
	name                  string // what messages begin with
	env                   []string
	stdin, stdout, stderr *os.File
	say                   io.Writer // for messages; nil: stderr
	// launch runs a job: start but in tests.
	launch func(ctx context.Context, cfg launch.Config, exitCode, report string) (status int, recorded bool, err error)
}

// command runs the subcommand that args begin with.
func (p program) command(ctx context.Context, args []string) int {
	p.name = "muster"
	if len(args) == 0 {
		io.WriteString(p.stderr, overview())
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "--version", "-V":
		return p.print(versionText())
	case "--help", "-h":
		return p.help(ctx, args)
	}
	if c := commandNamed(name); c != nil {
		if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
			return p.print(c.help())
		}
		if c.line {
			p.name = "muster " + name
		}
		if c.stops != nil {
			var stop context.CancelFunc
			ctx, stop = signal.NotifyContext(ctx, c.stops...)
			defer stop()
		}
		if c.do != nil {
			return c.start(ctx, args, p.stdin, p.stdout, p.stderr)
		}
		return c.run(p, ctx, args)
	}
	what, hint := "command", "`muster help` lists the commands"
	if name == "-v" {
		what, hint = "option", "`muster version` prints the version"
	} else if strings.HasPrefix(name, "-") || strings.ContainsAny(name, "./") {
		name, _, _ = strings.Cut(name, "=") // what follows may be a secret
		if l, _ := parseLine([]string{name}); l.unknown {
			what = "option"
		} else {
			hint = "to run a script: muster run " + name + " ..."
		}
	} else if meant := cmp.Or(otherNames[name], text.Nearest(name, names(subcommands())...)); meant != "" {
		hint = "did you mean muster " + meant + "?"
	}
	p.errorf("unknown %s %s; %s", what, quote(name), hint)
	return exitUsage
}

// print writes all that a command is asked for, and returns its exit status.
func (p program) print(text string) int {
	if _, err := io.WriteString(p.stdout, text); err != nil {
		p.errorf("%v", err)
		return exitError
	}
	return exitOK
}

// otherNames are what other programs call muster's commands.
var otherNames = map[string]string{
	"list": "ps", "ls": "ps", "status": "ps", "kill": "stop", "cancel": "stop", "launch": "run", "start": "run",
	"stack": "dump", "check": "doctor",
}

// How long the end of a job waits for a console that takes nothing of what muster says:
// lastWords where a signal has stopped the job, else unread.
const (
	unread    = 10 * time.Second
	lastWords = 2 * time.Second
)

// run is `muster run`, and the whole of torchrun.
func (p program) run(ctx context.Context, args []string) int {
	l, errs := parseLine(args)
	cfg := launch.Config{Env: p.env, Stdout: p.stdout, Stderr: p.stderr}
	switch shell := l.given[byName("print-completion")]; {
	case l.asked("help"): // whatever else is wrong
		return p.print(runHelp(p.name))
	case l.asked("version"):
		return p.print(versionText())
	case slices.Contains(shells, shell):
		return p.printCompletion(shell)
	case l.asked("dry-run"):
		return p.explainLine(l, errs)
	}
	r, cfg, bad := p.read(l, cfg)
	errs = append(errs, bad...)
	if errs != nil {
		status := p.usage(errs)
		p.handBack(args)
		p.recordError(cfg, errors.Join(errs...))
		return status
	}
	p.sayAdopted()
	slog.SetDefault(cfg.Logger)
	for _, text := range r.warnings {
		cfg.Logger.Warn(text)
	}
	for _, text := range r.notes {
		cfg.Logger.Info(text)
	}
	if r.schedule != nil {
		fmt.Fprintf(p.stderr, "%s: %s\n", p.name, r.schedule)
	}
	out := said(cfg)
	p.say = out
	outliveConsole()
	files, _ := r.lookup(envFiles)
	if files != "" {
		// A parent that is killed sends one for each of its threads: also while its files are removed.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
	}
	defer removeFiles(files, os.Getppid())
	status, recorded, err := p.launch(ctx, cfg, r.text("exit-code"), cmp.Or(r.text("report"), p.name))
	limit := unread
	if _, stopped := errors.AsType[*process.SignalError](err); stopped || status == failure.PreemptedStatus {
		limit = lastWords
	} else if isTerminal(p.stderr) {
		limit = 0 // no limit: Ctrl-S holds the terminal until Ctrl-Q or Ctrl-C
	}
	defer out.Flush(limit)
	if invalid, ok := errors.AsType[*launch.ConfigError](err); ok {
		errs := r.named(split(invalid))
		status := p.usage(errs)
		out.Flush(limit)
		p.handBack(args)
		p.recordError(cfg, errors.Join(errs...))
		return status
	}
	if err != nil {
		for _, err := range split(err) {
			p.errorf("%v", err)
		}
		if !recorded {
			p.recordError(cfg, err)
		}
	}
	return status
}

// removeFiles removes the directory of the Python program that was the parent, if it has been killed.
func removeFiles(dir string, parent int) {
	p, _ := procfs.Read(parent) // whose end may take a while
	if gone := os.Getppid() != parent || p.Exiting; gone && strings.HasPrefix(filepath.Base(dir), "muster_") {
		os.RemoveAll(dir)
	}
}

// outliveConsole makes a write to a console that has gone an error instead of the end of the program,
// whose work and exit status matter more. It holds until the program ends.
func outliveConsole() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// read makes a configuration of a command line. What could be read is returned even
// if there are errors.
func (p program) read(l line, cfg launch.Config) (reader, launch.Config, []error) {
	missing := l.readConfig(cfg.LookupEnv)
	if !l.hasScript && !l.unknown && missing == nil {
		missing = append(missing, &refusal{
			errors.New("the following arguments are required: training_script, training_script_args"),
			"there is no script to run; give one: " + p.name + " [options] train.py [its arguments]"})
	}
	r, cfg, errs := p.options(l, cfg)
	if l.hasScript && cfg.Workers.Entrypoint != "" {
		var err error
		cfg, err = launch.Resolve(cfg)
		errs = append(errs, r.named(split(err))...)
	}
	return r, cfg, append(missing, errs...)
}

// options reads what a command line and the environment say, before launch.Resolve.
func (p program) options(l line, cfg launch.Config) (reader, launch.Config, []error) {
	v, errs := weigh(l, cfg.LookupEnv)
	environ := cfg.Env
	if environ == nil {
		environ = os.Environ()
	}
	errs = append(errs, unknownVariables(environ)...)
	logger, err := v.logger(p.stderr, cfg.LookupEnv)
	errs = append(errs, split(err)...)
	extra, bad := v.environment(cfg.LookupEnv)
	errs = append(errs, bad...)
	given := launch.Config{Env: slices.Concat(environ, extra)}
	cfg.Env = slices.DeleteFunc(slices.Clone(given.Env), setsOption)
	cfg.Logger = logger
	r := reader{values: v, line: l, lookup: given.LookupEnv, root: os.DirFS("/"), self: p.self, ask: p.name != torchrunName}
	cfg = r.config(cfg)
	for _, entry := range strings.Split(l.given[byName("env")], "\x00") {
		if name, _, inline := strings.Cut(entry, "="); inline && text.IsSecret(name) {
			r.warn("--env %s=...: everybody on this host can read command lines; set the variable and use --env %s, or use "+
				"--env-file", name, name)
		}
	}
	return r, cfg, append(errs, r.errs...)
}

// recordError writes an error of the launcher itself to the file in which the
// program that started us looks for it.
func (p program) recordError(cfg launch.Config, err error) {
	path, _ := cfg.LookupEnv(envErrorFile)
	if said := text.AsOptions.Replace(err.Error()); said != err.Error() {
		err = errors.New(said)
	}
	if err := failure.WriteErrorFile(path, err); err != nil {
		p.errorf("%v", err)
	}
}

// asked reports whether an option without argument was given.
func (l line) asked(name string) bool { return l.given[byName(name)] != "" }

// split takes errors that were joined apart again, so that each gets its line.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if invalid, ok := err.(*launch.ConfigError); ok {
		return split(invalid.Err)
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, err := range joined.Unwrap() {
			all = append(all, split(err)...)
		}
		return all
	}
	return []error{err}
}
