package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/jobs"
	"github.com/muster-run/muster/cmd/muster/internal/runline"
)

// A subcommand is what may follow the name muster. The table of them is the source
// of `muster help` and, with the option table, of completion.
type subcommand struct {
	group string // begins a group of commands in `muster help`
	name  string
	what  string      // what it does, on one line
	usage string      // what --help prints, with its options; "" for run
	line  bool        // it also takes run's options
	words []word      // what its first argument may be, where that can be listed
	stops []os.Signal // they end ctx rather than the process
	ends  [2]string   // when its exit status is 0 and 1, if ever; wrong arguments give 2
	// run runs it, or do, if it takes none of run's options and only has to say what went
	// wrong.
	run func(p runline.Program, ctx context.Context, args []string) int
	do  func(ctx context.Context, c *command.Command, args []string) error
}

// subcommands lists all of them, in the order of `muster help`.
func subcommands() []subcommand {
	interrupt := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	all := []subcommand{
		{group: "Run a job", name: "run", what: "start a script's workers and keep them running, as torchrun does",
			line: true, run: runline.Program.Run},
		{name: "explain", what: "show every setting of such a command line; run nothing",
			ends: [2]string{"it printed the settings", "it could not write them"},
			line: true, run: runline.Program.Explain},
		{name: "doctor", what: "look for what would break a job, before it starts",
			ends: [2]string{"nothing failed; there may be warnings", "something failed"},
			line: true, stops: interrupt, run: runline.Program.Doctor},
		{group: "Watch it", name: "top", what: "watch a live job in the terminal",
			ends:  [2]string{"it showed something", "it found no job, or the job did not answer"},
			stops: append(interrupt[:2:2], syscall.SIGHUP), do: jobs.Top},
		{name: "dump", what: "show the stacks of workers on this host",
			ends:  [2]string{"it showed something", "it found no worker, or the job has ended"},
			stops: interrupt, do: jobs.Dump},
		{name: "ps", what: "list this user's jobs on this host",
			ends: [2]string{"it listed the jobs, or there is none", "a directory for sockets cannot be trusted"},
			do:   jobs.Ps},
		{name: "stop", what: "stop a job on all its hosts",
			ends:  [2]string{"it is done", "there is no such job, or the job does not stop"},
			stops: interrupt, do: jobs.Stop},
		{name: "restart", what: "start a job's workers again",
			ends: [2]string{"it is done", "there is no such job, or it cannot restart"},
			do:   jobs.Restart},
		{name: "signal", what: "send a signal to a job's workers",
			ends:  [2]string{"it is done", "there is no such job or worker"},
			words: bare([]string{"USR1", "USR2", "HUP", "INT", "TERM", "CONT", "STOP"}), do: jobs.Signal},
		{group: "Find out why it failed", name: "report",
			what: "show how a job went and why it failed, from its log directory",
			ends: [2]string{"it showed something, whatever became of the job", "it found nothing"},
			do:   jobs.Report},
		{name: "logs", what: "print or follow the workers' log files",
			ends:  [2]string{"it showed something, whatever became of the job", "it found nothing"},
			stops: interrupt, do: jobs.Logs},
		{name: "bundle", what: "pack what explains a job into one file",
			ends:  [2]string{"it wrote the file", "it found no job, or could not write the file"},
			stops: interrupt, do: jobs.Bundle},
		{name: "policy", what: "check a restart policy",
			ends:  [2]string{"the policy is valid", "the policy is wrong, or its file cannot be read"},
			words: []word{{"check", "say what is wrong with a policy"}}, do: policyCommand},
		{group: "Serve what a job needs", name: "store", what: "serve a TCPStore, or the rendezvous of jobs",
			ends:  [2]string{"SIGINT or SIGTERM stopped it", "it cannot listen or continue"},
			stops: interrupt, do: storeCommand},
		{group: "Other", name: "adopt", what: "start muster where an environment's programs start PyTorch's launcher",
			ends: [2]string{"it is done; with --status: muster is started", "it could not; with --status: PyTorch's launcher is started"},
			run:  runline.Program.Adopt},
		{name: "completion", what: "print a completion script for a shell",
			ends: [2]string{"it printed the script", "it could not"}, words: bare(runline.Shells), run: completion},
		{name: "version", what: "print the version",
			ends: [2]string{"it printed the version", "it could not"}, do: versionCommand},
		{name: "help", what: "show a command's usage and options",
			ends: [2]string{"it printed the help", "it could not"},
			run:  help},
	}
	for i := range all {
		all[i].usage = command.Usage(all[i].name)
	}
	last := len(all) - 1
	all[last].words = described(all[:last]) // what there is help on
	return all
}

// commandNamed returns a subcommand, nil if there is none of that name.
func commandNamed(name string) *subcommand {
	all := subcommands()
	i := slices.IndexFunc(all, func(c subcommand) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// help is the text of its --help.
func (c *subcommand) help() string {
	if c.usage == "" {
		return runline.Help("muster " + c.name)
	}
	return c.usage + console.ExitText(console.EndingsOf(c.ends))
}

// options are what the command takes, those of run first.
func (c *subcommand) options() []runline.Described {
	all := runline.Describe()
	find := func(name string) int {
		return slices.IndexFunc(all, func(o runline.Described) bool { return o.Name == name })
	}
	own := usageOptions(c.usage)
	if !c.line {
		return append(own, all[find("help")])
	}
	return append(all, slices.DeleteFunc(own, func(o runline.Described) bool { return find(o.Name) >= 0 })...)
}

// usageOptions reads the options from a command's usage. A line starts with two spaces
// and an option, or several: "--cert PATH --key PATH"; "--follow, -f" is one with two
// spellings. More indented lines continue with its description.
func usageOptions(usage string) []runline.Described {
	var found []runline.Described
	for text := range strings.Lines(usage) {
		if !strings.HasPrefix(text, "  -") {
			if n := len(found); n > 0 && strings.HasPrefix(text, "      ") {
				found[n-1].Help = strings.TrimSpace(found[n-1].Help + " " + strings.TrimSpace(text))
			}
			continue
		}
		again := false // a second spelling follows
		words := strings.Fields(text)
		for i, word := range words {
			name, comma := strings.CutSuffix(strings.TrimLeft(word, "-"), ",")
			switch last := len(found) - 1; {
			case word[0] == '-' && again:
				found[last].Short = name[0]
			case word[0] == '-':
				found = append(found, runline.Described{Name: name})
			case word == strings.ToUpper(word) && found[last].Arg == "":
				found[last].Arg = word
			default:
				found[last].Help = strings.Join(words[i:], " ")
			}
			if again = comma; found[len(found)-1].Help != "" {
				break
			}
		}
	}
	for i := len(found) - 2; i >= 0; i-- { // those before it on its line
		found[i].Help = cmp.Or(found[i].Help, found[i+1].Help)
	}
	return found
}

// overview is `muster help`.
func overview() string {
	var b strings.Builder
	b.WriteString("muster runs a distributed PyTorch job's workers and keeps the job alive.\n\n" +
		"usage: muster COMMAND ...\n")
	for _, c := range subcommands() {
		if c.group != "" {
			fmt.Fprintf(&b, "\n%s\n", c.group)
		}
		fmt.Fprintf(&b, "  %-12s%s\n", c.name, c.what)
	}
	b.WriteString(`
muster help COMMAND shows a command's options. Through a link named torchrun the program
is torchrun:

    muster run --nproc-per-node 2 train.py
    muster explain --nproc-per-node 2 train.py   # shows every setting, runs nothing
    ln -s "$(command -v muster)" ~/bin/torchrun
`)
	return b.String()
}
