// Package runline has what takes the command line of muster run: run itself, explain and doctor. It turns
// arguments and environment into a launch.Config. How the arguments are read is dictated by
// Python's argparse, because any torchrun command line must work unchanged.
//
// One table (options) is the source of parsing, environment variables, help and
// completion. A line is taken apart (parseLine), every option is weighed between
// command line, variable and default (weigh), the values are read into a Config
// (reader), and launch.Resolve decides the rest. Each step returns all that is
// wrong; what was found is reported together.
package runline

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

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/version"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
)

// Torchrun is the name under which the program behaves as torchrun does.
const Torchrun = "torchrun"

// A Program is one start of the binary.
type Program struct {
	Self           string // args[0]
	Name           string // what messages begin with
	env            []string
	Stdout, Stderr *os.File
	say            io.Writer // for messages; nil: Stderr
	// Completion makes the script with which a shell completes a program's command lines.
	Completion func(shell, name string) string
	// launch runs a job; nil: runJob.
	launch func(ctx context.Context, cfg launch.Config, exitCode, report string) (status int, recorded bool, err error)
}

// Print writes all that a command is asked for, and returns its exit status.
func (p Program) Print(text string) int {
	if _, err := io.WriteString(p.Stdout, text); err != nil {
		p.Errorf("%v", err)
		return console.ExitError
	}
	return console.ExitOK
}

// How long the end of a job waits for a console that takes nothing of what muster says:
// lastWords where a signal has stopped the job, else unread.
const (
	unread    = 10 * time.Second
	lastWords = 2 * time.Second
)

// Run is `muster run`, and the whole of torchrun.
func (p Program) Run(ctx context.Context, args []string) int {
	l, errs := parseLine(args)
	cfg := launch.Config{Env: p.env, Stdout: p.Stdout, Stderr: p.Stderr}
	switch shell := l.given[byName("print-completion")]; {
	case l.asked("help"): // whatever else is wrong
		return p.Print(Help(p.Name))
	case l.asked("version"):
		return p.Print(version.Text())
	case slices.Contains(Shells, shell):
		return p.Print(p.Completion(shell, p.Name))
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
		fmt.Fprintf(p.Stderr, "%s: %s\n", p.Name, r.schedule)
	}
	out := said(cfg)
	p.say = out
	console.Outlive()
	files, _ := r.lookup(envFiles)
	if files != "" {
		// A parent that is killed sends one for each of its threads: also while its files are removed.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
	}
	defer removeFiles(files, os.Getppid())
	if p.launch == nil {
		p.launch = runJob
	}
	status, recorded, err := p.launch(ctx, cfg, r.text("exit-code"), cmp.Or(r.text("report"), p.Name))
	limit := unread
	if _, stopped := errors.AsType[*process.SignalError](err); stopped || status == failure.PreemptedStatus {
		limit = lastWords
	} else if console.IsTerminal(p.Stderr) {
		limit = 0 // no limit: Ctrl-S holds the terminal until Ctrl-Q or Ctrl-C
	}
	defer out.Flush(limit)
	if invalid, ok := errors.AsType[*launch.ConfigError](err); ok {
		errs := r.named(console.Split(invalid))
		status := p.usage(errs)
		out.Flush(limit)
		p.handBack(args)
		p.recordError(cfg, errors.Join(errs...))
		return status
	}
	if err != nil {
		for _, err := range console.Split(err) {
			p.Errorf("%v", err)
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

// read makes a configuration of a command line. What could be read is returned even
// if there are errors.
func (p Program) read(l line, cfg launch.Config) (reader, launch.Config, []error) {
	missing := l.readConfig(cfg.LookupEnv)
	if !l.hasScript && !l.unknown && missing == nil {
		missing = append(missing, console.Refusal(
			errors.New("the following arguments are required: training_script, training_script_args"),
			"there is no script to run; give one: "+p.Name+" [options] train.py [its arguments]"))
	}
	r, cfg, errs := p.options(l, cfg)
	if l.hasScript && cfg.Workers.Entrypoint != "" {
		var err error
		cfg, err = launch.Resolve(cfg)
		errs = append(errs, r.named(console.Split(err))...)
	}
	return r, cfg, append(missing, errs...)
}

// options reads what a command line and the environment say, before launch.Resolve.
func (p Program) options(l line, cfg launch.Config) (reader, launch.Config, []error) {
	v, errs := weigh(l, cfg.LookupEnv)
	environ := cfg.Env
	if environ == nil {
		environ = os.Environ()
	}
	errs = append(errs, UnknownVariables(environ)...)
	logger, err := v.logger(p.Stderr, cfg.LookupEnv)
	errs = append(errs, console.Split(err)...)
	extra, bad := v.environment(cfg.LookupEnv)
	errs = append(errs, bad...)
	given := launch.Config{Env: slices.Concat(environ, extra)}
	cfg.Env = slices.DeleteFunc(slices.Clone(given.Env), setsOption)
	cfg.Logger = logger
	r := reader{values: v, line: l, lookup: given.LookupEnv, root: os.DirFS("/"), self: p.Self, ask: p.Name != Torchrun}
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
func (p Program) recordError(cfg launch.Config, err error) {
	path, _ := cfg.LookupEnv(envErrorFile)
	if said := text.AsOptions.Replace(err.Error()); said != err.Error() {
		err = errors.New(said)
	}
	if err := failure.WriteErrorFile(path, err); err != nil {
		p.Errorf("%v", err)
	}
}

// asked reports whether an option without argument was given.
func (l line) asked(name string) bool { return l.given[byName(name)] != "" }

// Errorf says what went wrong.
func (p Program) Errorf(format string, a ...any) { p.complain([]error{fmt.Errorf(format, a...)}, "") }

// complain says what went wrong, under the name torchrun as argparse would.
func (p Program) complain(errs []error, last string) {
	var w io.Writer = p.Stderr
	if p.say != nil {
		w = p.say
	}
	if p.Name != Torchrun {
		console.Complain(w, console.HasColour(p.Stderr), errs, last)
		return
	}
	for _, err := range errs {
		message := text.AsOptions.Replace(err.Error())
		fmt.Fprintf(w, "%s: error: %s\n", p.Name, text.Lines(message+console.TagOf(err, message, last != "")))
	}
}

// usage reports everything that is wrong with the command line.
func (p Program) usage(errs []error) int {
	if p.Name == Torchrun {
		fmt.Fprintf(p.Stderr, "usage: %s [options] training_script [training_script_args...]\n", p.Name)
		fmt.Fprintf(p.Stderr, "       %s --help lists the options\n", p.Name)
	}
	p.complain(errs, "`"+strings.Replace(p.Name, "muster ", "muster help ", 1)+"` shows the options")
	return console.ExitUsage
}
