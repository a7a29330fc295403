package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/muster-run/muster/internal/text"
)

// A command is one of muster's besides run.
type command struct {
	name, usage    string
	stdout, stderr io.Writer
}

// fail says what went wrong, each thing in a line, and returns the exit status.
func (c *command) fail(status int, err error) int {
	for _, err := range split(err) {
		fmt.Fprintf(c.stderr, "muster %s: error: %s\n", c.name, text.Lines(err.Error()))
	}
	return status
}

// refuse ends a command whose arguments could not be taken: with the usage, on stdout
// if that is what was asked for.
func (c *command) refuse(err error) int {
	if errors.Is(err, flag.ErrHelp) {
		io.WriteString(c.stdout, c.usage)
		return exitOK
	}
	io.WriteString(c.stderr, c.usage)
	return c.fail(exitUsage, err)
}

// oneArgument parses flags that may come before and after one argument, a
// directory.
func oneArgument(flags *flag.FlagSet, args []string) (string, error) {
	rest, err := arguments(flags, args)
	switch {
	case err != nil:
		return "", err
	case len(rest) == 0:
		return "", errors.New("no directory is given; it is the job's --log-dir, or a run's directory in it")
	case len(rest) > 1:
		return "", fmt.Errorf("unexpected argument %s; want one directory", quote(rest[1]))
	}
	return rest[0], nil
}

// arguments parses flags that may come before, between and after arguments.
func arguments(flags *flag.FlagSet, args []string) (rest []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return rest, nil
		}
		done := len(args) - flags.NArg()
		if done > 0 && args[done-1] == "--" {
			return append(rest, flags.Args()...), nil
		}
		rest, args = append(rest, flags.Arg(0)), flags.Args()[1:]
	}
}
