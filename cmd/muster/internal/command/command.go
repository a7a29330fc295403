// Package command has what the commands share that take none of run's options: how one reads its
// arguments, and how it starts and ends.
package command

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/format/text"
)

// A Command is one start of a subcommand that takes no options of run. What is wrong with
// its arguments is gathered in Errs, and reported together.
type Command struct {
	*flag.FlagSet
	Stdout *output
	Stderr io.Writer
	Errs   []error
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

// A StatusError ends a command with a status of its own; without an error it says nothing.
type StatusError struct {
	Status int
	error
}

// Start runs the command of a name and returns the exit status. What went wrong is on stderr, each
// thing in a line, and after wrong arguments where to read about them; the usage is on
// stdout if that is what they ask for.
func Start(ctx context.Context, name string, do func(context.Context, *Command, []string) error, args []string,
	stdout, stderr io.Writer) int {
	c := &Command{FlagSet: flag.NewFlagSet("muster "+name, flag.ContinueOnError),
		Stdout: &output{Writer: stdout}, Stderr: stderr}
	c.SetOutput(io.Discard) // errors are reported below
	status, last, err := console.ExitError, "", do(ctx, c, args)
	if refused, ok := err.(usageError); ok && errors.Is(refused.error, flag.ErrHelp) {
		_, err = io.WriteString(c.Stdout, Usage(name))
	}
	if err = cmp.Or(err, c.Stdout.err); err == nil {
		return console.ExitOK
	}
	if ended, ok := err.(StatusError); ok {
		status, err = ended.Status, ended.error
	}
	if refused, ok := err.(usageError); ok {
		status, err = console.ExitUsage, refused.error
		last = "`muster help " + name + "` shows the options"
	}
	console.Complain(stderr, console.HasColour(stderr), console.Split(err), last)
	return status
}

// Wrong notes what is wrong with the arguments.
func (c *Command) Wrong(format string, a ...any) { c.Errs = append(c.Errs, fmt.Errorf(format, a...)) }

// Refused is what is wrong with the arguments, nil if nothing is.
func (c *Command) Refused() error {
	if err := errors.Join(c.Errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// Note says something beside the output.
func (c *Command) Note(what string) { fmt.Fprintf(c.Stderr, "%s: %s\n", c.Name(), what) }

// Arguments parses options that may come before, between and after arguments. It returns
// false if they cannot be told apart.
func (c *Command) Arguments(args []string) (rest []string, ok bool) {
	for {
		if err := c.Parse(args); err != nil {
			c.Errs = append(c.Errs, c.parseError(err))
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
func (c *Command) parseError(err error) error {
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		var known []string
		c.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
		if meant := text.Nearest(name, known...); meant != "" {
			return fmt.Errorf("unknown option %s; did you mean %s?", Dashed(name), Dashed(meant))
		}
		return fmt.Errorf("unknown option %s", Dashed(name))
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return fmt.Errorf("%s needs a value", Dashed(name))
	}
	if rest, ok := strings.CutPrefix(err.Error(), "invalid boolean value "); ok {
		value, name, _ := strings.Cut(strings.TrimSuffix(rest, ": parse error"), " for -")
		return fmt.Errorf("%s takes no value, got %s; leave that out", Dashed(name), value)
	}
	return err
}

// Dashed is an option as people type it.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + console.Printable(name)
	}
	return "--" + console.Printable(name)
}

// Value is an option that set reads, given once. An error of set means that want is wanted.
func (c *Command) Value(name, want string, set func(text string) error) {
	given := ""
	c.Func(name, "", func(text string) error {
		if given != "" {
			c.Wrong("--%s is given twice; leave one of the two out, %s or %s", name, console.Quote(given), console.Quote(text))
		}
		if given = text; set(text) != nil {
			c.Wrong("--%s cannot be %s; want %s", name, console.Quote(text), want)
		}
		return nil
	})
}

func (c *Command) Text(name string, v *string) {
	c.Value(name, "a text", func(text string) error { *v = text; return nil })
}

func (c *Command) Number(name string, v *int, least, most int) {
	c.Value(name, fmt.Sprintf("a number from %d to %d", least, most), func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return strconv.ErrRange
		}
		*v = n
		return nil
	})
}

// ParseSeconds reads a number of seconds, or a time with units, more than 0 and at most
// most seconds.
func ParseSeconds(given string, v *time.Duration, most float64) error {
	n, err := strconv.ParseFloat(text.Seconds(given), 64)
	if err != nil || !(n > 0 && n <= most) {
		return strconv.ErrRange
	}
	*v = max(time.Duration(n*float64(time.Second)), 1) // 0 would mean a default
	return nil
}

// Logger is console.NewLogger's, which writes to w. A bad LOGLEVEL is wrong usage.
func (c *Command) Logger(w io.Writer) *slog.Logger {
	logger, err := console.NewLogger(w, os.LookupEnv)
	c.Errs = append(c.Errs, console.Split(err)...)
	return logger
}

// AtMost parses options and at most n arguments, which it returns, "" where they are missing.
func (c *Command) AtMost(n int, args []string) []string {
	rest, ok := c.Arguments(args)
	if ok && len(rest) > n {
		c.Wrong("unexpected argument %s; leave it out", console.Quote(rest[n]))
	}
	return append(rest, make([]string, n)...)
}

// usages has a file NAME.txt for each command but run.
//
//go:embed help
var usages embed.FS

// Usage is what --help of a command prints, without the exit statuses; "" for run.
func Usage(command string) string {
	text, _ := usages.ReadFile("help/" + command + ".txt")
	return string(text)
}
