package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// A command is one start of a subcommand that takes no options of run. What is wrong with
// its arguments is gathered in errs, and reported together.
type command struct {
	*flag.FlagSet
	stdin  *os.File
	stdout *output
	stderr io.Writer
	errs   []error
}

// An output remembers the first error of a write, which ends the command with an error.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(b []byte) (n int, err error) {
	n, err = o.Writer.Write(b)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// A usageError says what is wrong with a command's arguments.
type usageError struct{ error }

// A statusError ends a command with a status of its own; without an error it says nothing.
type statusError struct {
	status int
	error
}

// start runs a subcommand and returns the exit status. What went wrong is on stderr, each
// thing in a line, and after wrong arguments where to read about them; the usage is on
// stdout if that is what they ask for.
func (s *subcommand) start(ctx context.Context, args []string, stdin *os.File, stdout, stderr io.Writer) int {
	c := &command{FlagSet: flag.NewFlagSet("muster "+s.name, flag.ContinueOnError), stdin: stdin,
		stdout: &output{Writer: stdout}, stderr: stderr}
	c.SetOutput(io.Discard) // errors are reported below
	status, last, err := exitError, "", s.do(ctx, c, args)
	if refused, ok := err.(usageError); ok && errors.Is(refused.error, flag.ErrHelp) {
		_, err = io.WriteString(c.stdout, s.usage)
	}
	if err = cmp.Or(err, c.stdout.err); err == nil {
		return exitOK
	}
	if ended, ok := err.(statusError); ok {
		status, err = ended.status, ended.error
	}
	if refused, ok := err.(usageError); ok {
		status, err = exitUsage, refused.error
		last = "`muster help " + s.name + "` shows the options"
	}
	complain(stderr, hasColour(stderr), split(err), last)
	return status
}

// wrong notes what is wrong with the arguments.
func (c *command) wrong(format string, a ...any) { c.errs = append(c.errs, fmt.Errorf(format, a...)) }

// refused is what is wrong with the arguments, nil if nothing is.
func (c *command) refused() error {
	if err := errors.Join(c.errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// note says something beside the output.
func (c *command) note(what string) { fmt.Fprintf(c.stderr, "%s: %s\n", c.Name(), what) }

// arguments parses options that may come before, between and after arguments. It returns
// false if they cannot be told apart.
func (c *command) arguments(args []string) (rest []string, ok bool) {
	for {
		if err := c.Parse(args); err != nil {
			c.errs = append(c.errs, c.parseError(err))
			return rest, false
		}
		if c.NArg() == 0 {
			return rest, true
		}
		done := len(args) - c.NArg()
		if done > 0 && args[done-1] == "--" {
			return append(rest, c.Args()...), true
		}
		rest, args = append(rest, c.Arg(0)), c.Args()[1:]
	}
}

// parseError says what package flag says in the words of run.
func (c *command) parseError(err error) error {
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		var known []string
		c.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
		if meant := text.Nearest(name, known...); meant != "" {
			return fmt.Errorf("unknown option %s; did you mean %s?", dashed(name), dashed(meant))
		}
		return fmt.Errorf("unknown option %s", dashed(name))
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return fmt.Errorf("%s needs a value", dashed(name))
	}
	if rest, ok := strings.CutPrefix(err.Error(), "invalid boolean value "); ok {
		value, name, _ := strings.Cut(strings.TrimSuffix(rest, ": parse error"), " for -")
		return fmt.Errorf("%s takes no value, got %s; leave that out", dashed(name), value)
	}
	return err
}

// dashed is an option as people type it.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + printable(name)
	}
	return "--" + printable(name)
}

// value is an option that set reads, given once. An error of set means that want is wanted.
func (c *command) value(name, want string, set func(text string) error) {
	given := ""
	c.Func(name, "", func(text string) error {
		if given != "" {
			c.wrong("--%s is given twice; leave one of the two out, %s or %s", name, quote(given), quote(text))
		}
		if given = text; set(text) != nil {
			c.wrong("--%s cannot be %s; want %s", name, quote(text), want)
		}
		return nil
	})
}

func (c *command) text(name string, v *string) {
	c.value(name, "a text", func(text string) error { *v = text; return nil })
}

func (c *command) number(name string, v *int, least, most int) {
	c.value(name, fmt.Sprintf("a number from %d to %d", least, most), func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return strconv.ErrRange
		}
		*v = n
		return nil
	})
}

// parseSeconds reads a number of seconds, or a time with units, more than 0 and at most
// most seconds.
func parseSeconds(given string, v *time.Duration, most float64) error {
	n, err := strconv.ParseFloat(text.Seconds(given), 64)
	if err != nil || !(n > 0 && n <= most) {
		return strconv.ErrRange
	}
	*v = max(time.Duration(n*float64(time.Second)), 1) // 0 would mean a default
	return nil
}

// logger is newLogger's, which writes to w. A bad LOGLEVEL is wrong usage.
func (c *command) logger(w io.Writer) *slog.Logger {
	logger, err := newLogger(w, os.LookupEnv)
	c.errs = append(c.errs, split(err)...)
	return logger
}
