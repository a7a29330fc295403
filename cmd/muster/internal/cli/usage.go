package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/text"
)

// A refusal is what is wrong with a command line: as an error in argparse's words, which
// people see under the name torchrun and find in error files, and in muster's words, if these
// are others.
type refusal struct {
	error
	plain string
}

func (e *refusal) Unwrap() error { return e.error }

// plain is an error in muster's words.
func plain(err error) string {
	if r, ok := err.(*refusal); ok && r.plain != "" {
		return r.plain
	}
	return text.AsOptions.Replace(err.Error())
}

// refuse says what is wrong with an option, and where its value is from.
func (o *option) refuse(err error, from string) error {
	return located(o.advise(&refusal{fmt.Errorf("argument %s: %w", o, err), "--" + o.name + ": " + plain(err)}), from)
}

// advise adds what the option takes to an error about it that gives no advice.
func (o *option) advise(err error) error {
	message := plain(err)
	if _, advice := advised(message); advice != "" || !o.takesArg() || o.arg == "FILE" {
		return err
	}
	if o.arg == "SECONDS" {
		return &refusal{err, message + "; give seconds, or a time such as 90s, 10m or 1h30m"}
	}
	if rest, ok := strings.CutPrefix(message, strings.ReplaceAll(o.name, "-", " ")); ok && o.kind == kindInt {
		return &refusal{err, "--" + o.name + rest} // of launch.Resolve, with what is allowed
	}
	return &refusal{err, message + "; write --" + o.name + " " + o.arg}
}

// located is an error about a value with where that is from, as in told.from.
func located(err error, from string) error {
	switch {
	case from == "":
		return err
	case strings.Contains(from, ":"):
		return &refusal{fmt.Errorf("%s: %w", from, err), from + ": " + plain(err)}
	}
	return &refusal{fmt.Errorf("%w (from %s)", err, from), plain(err) + " (from " + from + ")"}
}

// complain writes errors, each in a line of its own, and what to do about it in the next.
// last is what to do where no error says anything, after wrong usage.
func complain(w io.Writer, colour bool, errs []error, last string) {
	red, blue, off := "", "", ""
	if colour {
		red, blue, off = "\x1b[1;31m", "\x1b[1;36m", "\x1b[0m"
	}
	var b strings.Builder
	var said []string
	usage := last != ""
	for _, err := range errs {
		message := plain(err)
		if slices.Contains(said, message) {
			continue
		}
		said = append(said, message)
		what, advice := advised(message)
		fmt.Fprintf(&b, "%serror:%s %s\n", red, off, text.Lines(what+tagOf(err, message, usage)))
		if advice != "" {
			fmt.Fprintf(&b, "%shint:%s %s\n", blue, off, text.Lines(advice))
			last = ""
		}
	}
	if last != "" {
		fmt.Fprintf(&b, "%shint:%s %s\n", blue, off, last)
	}
	io.WriteString(w, b.String())
}

// tagOf is the ID of an error's message; what is wrong with a command line has none, whatever it
// quotes.
func tagOf(err error, message string, usage bool) string {
	if _, refused := errors.AsType[*refusal](err); refused || usage {
		return ""
	}
	return tag(message)
}

// hasColour reports whether w is a terminal on which colours are wanted.
func hasColour(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)
}

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// imperatives begin what muster's messages advise, after a semicolon.
var imperatives = []string{
	"check", "chmod", "choose", "copy", "did", "give", "leave", "let", "make", "name", "put", "raise", "remove", "run",
	"say", "see", "set",
	"start", "to", "try", "use", "want", "write",
}

// advised takes a message apart: what is wrong, and what to do about it.
func advised(message string) (what, advice string) {
	from := "" // the variable in question, which may come last
	if i := strings.LastIndex(message, " (from "); i >= 0 && strings.HasSuffix(message, ")") {
		message, from = message[:i], message[i:]
	}
	for i := range message {
		rest, ok := strings.CutPrefix(message[i:], "; ")
		if !ok {
			continue
		}
		verb, object, _ := strings.Cut(rest, " ")
		if verb == "want" {
			rest = "give " + object
		}
		if slices.Contains(imperatives, strings.TrimSuffix(verb, ":")) || strings.HasPrefix(rest, "`") ||
			strings.HasPrefix(rest, "--") {
			return message[:i] + from, rest
		}
	}
	return message + from, ""
}

// errorf says what went wrong.
func (p program) errorf(format string, a ...any) { p.complain([]error{fmt.Errorf(format, a...)}, "") }

// complain says what went wrong, under the name torchrun as argparse would.
func (p program) complain(errs []error, last string) {
	var w io.Writer = p.stderr
	if p.say != nil {
		w = p.say
	}
	if p.name != torchrunName {
		complain(w, hasColour(p.stderr), errs, last)
		return
	}
	for _, err := range errs {
		message := text.AsOptions.Replace(err.Error())
		fmt.Fprintf(w, "%s: error: %s\n", p.name, text.Lines(message+tagOf(err, message, last != "")))
	}
}

// usage reports everything that is wrong with the command line.
func (p program) usage(errs []error) int {
	if p.name == torchrunName {
		fmt.Fprintf(p.stderr, "usage: %s [options] training_script [training_script_args...]\n", p.name)
		fmt.Fprintf(p.stderr, "       %s --help lists the options\n", p.name)
	}
	p.complain(errs, "`"+strings.Replace(p.name, "muster ", "muster help ", 1)+"` shows the options")
	return exitUsage
}
