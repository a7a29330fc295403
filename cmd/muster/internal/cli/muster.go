// Package cli is muster's command line: the table of its commands, their help and completion, and the
// commands that need no package of their own. Those that take the options of run are in package runline,
// those about a job in package jobs.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/runline"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/version"
)

// Run runs the program started as args[0] and returns its exit status. It is
// what main calls; nothing in it ends the process.
func Run(ctx context.Context, args []string, stdout, stderr *os.File) int {
	p := runline.Program{Stdout: stdout, Stderr: stderr, Completion: completionScript}
	if len(args) > 0 {
		p.Self, args = args[0], args[1:]
	}
	if filepath.Base(p.Self) == runline.Torchrun {
		p.Name = runline.Torchrun
		return p.Run(ctx, args)
	}
	return dispatch(ctx, p, args)
}

// dispatch runs the subcommand that args begin with.
func dispatch(ctx context.Context, p runline.Program, args []string) int {
	p.Name = "muster"
	if len(args) == 0 {
		io.WriteString(p.Stderr, overview())
		return console.ExitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "--version", "-V":
		return p.Print(version.Text())
	case "--help", "-h":
		return help(p, ctx, args)
	}
	if c := commandNamed(name); c != nil {
		if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
			return p.Print(c.help())
		}
		if c.line {
			p.Name = "muster " + name
		}
		if c.stops != nil {
			var stop context.CancelFunc
			ctx, stop = signal.NotifyContext(ctx, c.stops...)
			defer stop()
		}
		if c.do != nil {
			return command.Start(ctx, c.name, c.do, args, p.Stdout, p.Stderr)
		}
		return c.run(p, ctx, args)
	}
	what, hint := "command", "`muster help` lists the commands"
	if name == "-v" {
		what, hint = "option", "`muster version` prints the version"
	} else if strings.HasPrefix(name, "-") || strings.ContainsAny(name, "./") {
		name, _, _ = strings.Cut(name, "=") // what follows may be a secret
		if runline.Knows(name) {
			hint = "to run a script: muster run " + name + " ..."
		} else {
			what = "option"
		}
	} else if meant := text.Nearest(name, names(subcommands())...); meant != "" {
		hint = "did you mean muster " + meant + "?"
	}
	p.Errorf("unknown %s %s; %s", what, console.Quote(name), hint)
	return console.ExitUsage
}

// help is `muster help [command]`.
func help(p runline.Program, _ context.Context, args []string) int {
	if len(args) == 0 {
		return p.Print(overview())
	}
	if len(args) > 1 {
		p.Errorf("unexpected argument %s; want one command", console.Quote(args[1]))
		return console.ExitUsage
	}
	if c := commandNamed(args[0]); c != nil {
		return p.Print(c.help())
	}
	hint := "`muster help` lists the commands"
	if meant := text.Nearest(args[0], names(subcommands())...); meant != "" {
		hint = "did you mean muster help " + meant + "?"
	}
	p.Errorf("no help on %s; %s", console.Quote(args[0]), hint)
	return console.ExitUsage
}

// completion is `muster completion SHELL`.
func completion(p runline.Program, _ context.Context, args []string) int {
	if len(args) == 1 && slices.Contains(runline.Shells, args[0]) {
		return p.Print(completionScript(args[0], p.Name))
	}
	p.Errorf("completion wants one shell: %s; `muster completion --help` shows how to install the script",
		strings.Join(runline.Shells, ", "))
	return console.ExitUsage
}
