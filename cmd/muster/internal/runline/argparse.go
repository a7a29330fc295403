package runline

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/console"
)

// A line is a command line taken apart, before any value has been looked at.
type line struct {
	given     map[*option]string // the last text of every option seen; "1" for flags
	script    string
	hasScript bool
	args      []string         // the script's
	unknown   bool             // an option was not recognised: what follows it is a guess
	file      map[*option]told // what the file of --config says
	stray     *option          // after the script, though probably meant for muster
}

// A told is a text that somebody gives for an option.
type told struct {
	text string
	from string // a variable, FILE:LINE, or "" for the command line
}

// sources lists what is said of an option, that which counts first. Where an option may
// be repeated, what a config file says counts beside it.
func (l *line) sources(o *option, getenv func(string) (string, bool)) (all []told) {
	if text, ok := l.given[o]; ok {
		all = append(all, told{text: text})
	}
	if o.env != "" {
		if text, ok := getenv(o.env); ok {
			all = append(all, told{text, o.env})
		}
	}
	if s, ok := l.file[o]; ok {
		if all = append(all, s); o.kind == kindEach && len(all) > 1 {
			all[0].text = s.text + "\x00" + all[0].text
		}
	}
	return all
}

// parseLine takes arguments apart as Python's argparse does for torchrun's
// parser, and returns all that is wrong with them instead of the first problem.
//
// It is more lenient in three ways: a prefix may be ambiguous between the two
// spellings of one option, dashes and underscores may be mixed, and the script's
// own arguments are never looked at.
//
// Source: ArgumentParser._parse_known_args, _parse_optional and
// _get_option_tuples of CPython 3.11.
func parseLine(args []string) (line, []error) { return new(lineParser).parse(args) }

// Knows reports whether run takes an argument: for its script, or for an option that it has.
func Knows(arg string) bool {
	l, _ := parseLine([]string{arg})
	return !l.unknown
}

// A lineParser is in the midst of a command line. flags and texts are options that only its
// command has, in full: those without and with an argument.
type lineParser struct {
	line
	flags map[string]*bool
	texts map[string]*string
	rest  []string // not looked at yet
	errs  []error
}

func (p *lineParser) parse(args []string) (line, []error) {
	p.given, p.rest = map[*option]string{}, args
	for len(p.rest) > 0 {
		arg := p.rest[0]
		p.rest = p.rest[1:]
		switch {
		case arg == "--":
			if len(p.rest) > 0 {
				p.script, p.hasScript, p.args = p.rest[0], true, p.rest[1:]
			}
			return p.line, p.errs
		case !strings.HasPrefix(arg, "-") || isValue(arg):
			p.script, p.hasScript, p.args = arg, true, p.rest
			p.stray = strayed(p.args)
			if len(p.args) > 0 && p.args[0] == "--" {
				p.args = p.args[1:] // argparse drops one that follows at once
			}
			return p.line, p.errs
		case strings.HasPrefix(arg, "--"):
			p.long(arg[2:])
		default:
			p.cluster(arg)
		}
	}
	return p.line, p.errs
}

// long takes an option that began with two dashes.
func (p *lineParser) long(arg string) {
	name, value, hasValue := strings.Cut(arg, "=")
	o, err := lookup(name)
	flag, text := p.flags["--"+name], p.texts["--"+name]
	switch {
	case flag != nil:
		*flag = true
	case text != nil:
		if !hasValue && p.hasValue() {
			value, p.rest = p.rest[0], p.rest[1:]
		}
		if *text != "" {
			p.errs = append(p.errs, fmt.Errorf("--%s is given twice; leave one of the two out", name))
		}
		if *text = value; value == "" {
			p.errs = append(p.errs, fmt.Errorf("--%s needs a value; write --%s VALUE", name, name))
		}
	case err != nil:
		p.unknown = true
		p.errs = append(p.errs, err)
		// Go on as if the likeliest option had been written, for the sake of the errors
		// that follow.
		if o != nil && o.takesArg() && !hasValue && p.hasValue() {
			p.rest = p.rest[1:]
		}
	case !o.takesArg() && hasValue:
		p.ignored(o, value)
	case !o.takesArg():
		p.given[o] = "1"
	case hasValue:
		p.give(o, value)
	default:
		p.takeValue(o)
	}
}

// cluster takes what began with one dash: short options, the last of which may have an
// argument, joined or not, with or without '='.
func (p *lineParser) cluster(arg string) {
	for rest := arg[1:]; rest != ""; {
		o := byShort(rest[0])
		if o == nil {
			p.unknown = true
			p.errs = append(p.errs, unrecognised(arg))
			return
		}
		rest = rest[1:]
		switch {
		case !o.takesArg() && rest != "" && byShort(rest[0]) == nil:
			p.ignored(o, strings.TrimPrefix(rest, "="))
			return
		case !o.takesArg():
			p.given[o] = "1"
		case rest != "":
			p.give(o, strings.TrimPrefix(rest, "="))
			return
		default:
			p.takeValue(o)
		}
	}
}

// hasValue reports whether the next argument can be an option's value.
func (p *lineParser) hasValue() bool { return len(p.rest) > 0 && isValue(p.rest[0]) }

// takeValue gives the option the next argument.
func (p *lineParser) takeValue(o *option) {
	if p.hasValue() {
		p.give(o, p.rest[0])
		p.rest = p.rest[1:]
		return
	}
	p.errs = append(p.errs, console.Refusal(fmt.Errorf("argument %s: expected one argument", o),
		"--"+o.name+" needs a value; write --"+o.name+" "+o.arg))
}

// ignored reports a value that the option does not take.
func (p *lineParser) ignored(o *option, value string) {
	p.errs = append(p.errs, console.Refusal(fmt.Errorf("argument %s: ignored explicit argument %s", o,
		console.Quote(value)),
		"--"+o.name+" takes no value, got "+console.Quote(value)+"; leave that out"))
}

// strayed finds the first of a script's arguments that is an option of muster's and of
// hardly any script. It looks no further than --.
func strayed(args []string) *option {
	for _, arg := range args {
		if arg == "--" {
			break
		}
		name, _, _ := strings.Cut(arg, "=")
		if name, long := strings.CutPrefix(name, "--"); long {
			if o := byName(name); o != nil && slices.Contains(launchers, o.name) {
				return o
			}
		}
	}
	return nil
}

// launchers are options that only a program that starts others has.
var launchers = []string{
	"nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone", "max-restarts",
	"local-ranks-filter", "restart-policy", "hang-timeout", "preemption-signals", "health-addr",
}

// give notes an option's text.
func (l line) give(o *option, text string) {
	if before, again := l.given[o]; again && o.kind == kindEach {
		text = before + "\x00" + text
	}
	l.given[o] = text
}

// lookup finds the option that --name means: its name, or an abbreviation that
// fits no other option. With an error comes the likeliest option, if any.
func lookup(name string) (*option, error) {
	if o := byName(name); o != nil {
		return o, nil
	}
	switch found := byPrefix(name); len(found) {
	case 0:
		return nearest(name), unrecognised("--" + name)
	case 1:
		return found[0], nil
	default:
		names := make([]string, len(found))
		for i, o := range found {
			names[i] = "--" + o.name
		}
		list := strings.Join(names, ", ")
		return found[0], console.Refusal(fmt.Errorf("ambiguous option: --%s could match %s",
			console.Printable(name), list),
			fmt.Sprintf("--%s could mean %s; write the option out", console.Printable(name), list))
	}
}

// unrecognised names an unknown option and the known one most like it.
func unrecognised(arg string) error {
	argparse, meant := "", ""
	if o := nearest(strings.TrimLeft(arg, "-")); o != nil {
		argparse, meant = " (did you mean --"+o.name+"?)", "; did you mean --"+o.name+"?"
	}
	return console.Refusal(fmt.Errorf("unrecognized arguments: %s%s", console.Printable(arg), argparse),
		"unknown option "+console.Printable(arg)+meant)
}

// isValue reports whether argparse would take arg for a value or the script rather
// than for an option: no leading dash, a dash alone, a negative number, or a
// text with a blank that is not a known option.
func isValue(arg string) bool {
	if len(arg) < 2 || arg[0] != '-' || negativeNumber.MatchString(arg) {
		return true
	}
	if arg == "--" || !strings.Contains(arg, " ") {
		return false
	}
	if name, ok := strings.CutPrefix(arg, "--"); ok {
		name, _, _ = strings.Cut(name, "=")
		return byName(name) == nil && len(byPrefix(name)) == 0
	}
	o := byShort(arg[1])
	return o == nil || o.own
}

// negativeNumber is argparse's _negative_number_matcher.
var negativeNumber = regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`)
