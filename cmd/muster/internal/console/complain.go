// Package console is how muster speaks to people: errors with what to do about them, lines of the log,
// the IDs of both, texts from outside that are safe on a terminal, and exit statuses.
package console

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/format/text"
)

// A refusal is what is wrong with a command line: as an error in argparse's words, which
// people see under the name torchrun and find in error files, and in muster's words, if these
// are others.
type refusal struct {
	error
	plain string
}

// Refusal makes a refusal. plain is "" where err has muster's words.
func Refusal(err error, plain string) error { return &refusal{err, plain} }

func (e *refusal) Unwrap() error { return e.error }

// Plain is an error in muster's words.
func Plain(err error) string {
	if r, ok := err.(*refusal); ok && r.plain != "" {
		return r.plain
	}
	return text.AsOptions.Replace(err.Error())
}

// Complain writes errors, each in a line of its own, and what to do about it in the next.
// last is what to do where no error says anything, after wrong usage.
func Complain(w io.Writer, colour bool, errs []error, last string) {
	red, blue, off := "", "", ""
	if colour {
		red, blue, off = "\x1b[1;31m", "\x1b[1;36m", "\x1b[0m"
	}
	var b strings.Builder
	var said []string
	usage := last != ""
	for _, err := range errs {
		message := Plain(err)
		if slices.Contains(said, message) {
			continue
		}
		said = append(said, message)
		what, advice := Advised(message)
		fmt.Fprintf(&b, "%serror:%s %s\n", red, off, text.Lines(what+TagOf(err, message, usage)))
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

// TagOf is the ID of an error's message; what is wrong with a command line has none, whatever it
// quotes.
func TagOf(err error, message string, usage bool) string {
	if _, refused := errors.AsType[*refusal](err); refused || usage {
		return ""
	}
	return tag(message)
}

// HasColour reports whether w is a terminal on which colours are wanted.
func HasColour(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(f)
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// imperatives begin what muster's messages advise, after a semicolon.
var imperatives = []string{
	"check", "chmod", "choose", "copy", "did", "give", "leave", "let", "make", "name", "put", "raise", "remove", "run",
	"say", "see", "set",
	"start", "to", "try", "use", "want", "write",
}

// Advised takes a message apart: what is wrong, and what to do about it.
func Advised(message string) (what, advice string) {
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

// Outlive makes a write to a console that has gone an error instead of the end of the program,
// whose work and exit status matter more. It holds until the program ends.
func Outlive() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
