package runline

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wire/auth"
)

// values are the options of one command line after flag, environment and
// default have been weighed, each in its own type: string, int, float64, bool or
// []string, or a time.Duration for a time that is learned; nil for an unset one.
type values map[string]any

func (v values) text(name string) string   { s, _ := v[name].(string); return s }
func (v values) int(name string) int       { n, _ := v[name].(int); return n }
func (v values) list(name string) []string { l, _ := v[name].([]string); return l }
func (v values) flag(name string) bool     { b, _ := v[name].(bool); return b }
func (v values) isSet(name string) bool    { return v[name] != nil }

// weigh takes each option's value from the command line, else from its
// environment variable, else from the config file, else from its default, and converts
// it. An empty variable counts as set. Choices do not bind variables, as in torchrun,
// except for muster's own options. What is given on the command line hides a bad
// variable.
// Source: env and check_env in torch/distributed/argparse_util.py.
func weigh(l line, getenv func(string) (string, bool)) (values, []error) {
	v := values{}
	var errs []error
	for i := range options {
		o := &options[i]
		all := l.sources(o, getenv)
		given := len(all) > 0
		if !given {
			if o.unset {
				continue
			}
			all = []told{{text: o.def}}
			if o.kind == kindFlag {
				all[0].text = "0"
			}
		}
		text, from := all[0].text, all[0].from
		if o.choices != nil && given && (from == "" || from != o.env || o.own) && !slices.Contains(o.choices, text) {
			list, last := o.choices[:len(o.choices)-1], o.choices[len(o.choices)-1]
			errs = append(errs, o.refuse(console.Refusal(fmt.Errorf("invalid choice: %s (choose from '%s')",
				console.Quote(text), strings.Join(o.choices, "', '")),
				console.Quote(text)+" is not a choice; give "+strings.Join(list, ", ")+" or "+last), from))
			continue
		}
		value, err := o.convert(text)
		if err != nil {
			errs = append(errs, o.refuse(err, from))
			continue
		}
		v[o.name] = value
	}
	return v, errs
}

// otherVariables begin as those of options do, and are read elsewhere: by workers, by the
// wheel, where a scheduler says how hosts meet, by muster's own processes.
var otherVariables = []string{
	"MUSTER_ADOPT", envAdopted, "MUSTER_BINARY", envFiles, "MUSTER_FUNC", envInterpreter, "MUSTER_LIVE_ID", "MUSTER_LIVE_SOCKET",
	"MUSTER_NNODES", "MUSTER_TEMPLATE", "MUSTER_TIMER_SOCKET", "MUSTER_TOKEN", "MUSTER_WORKER",
}

// testVariables are what follows MUSTER_ in those of muster's own tests, which start it with their environment.
var testVariables = []string{"BENCH", "BIN", "DIR", "E2E", "JUDGE", "PYTHON", "SEQUENCE", "SOURCE", "UPDATE"}

// UnknownVariables refuses those that nobody reads: a job should not run without the
// watchdog that MUSTER_HANG_TIMOUT or MUSTER_WATCHDOG was to give it. Those that Kubernetes
// makes of services called muster or muster-head are nobody's mistake.
func UnknownVariables(environ []string) (errs []error) {
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		rest, ok := strings.CutPrefix(name, "MUSTER_")
		if !ok || slices.Contains(otherVariables, name) {
			continue
		}
		if d := text.Distance(auth.TokenVariable, name); d <= 2 || strings.HasPrefix(name, auth.TokenVariable+"_") {
			errs = append(errs, fmt.Errorf("unknown variable %s; put the job's token into %s, or name its file with "+
				"token_file=PATH in --rdzv-conf (muster store: --token-file PATH)", name, auth.TokenVariable))
			continue
		}
		typed, nearest, meant := strings.ReplaceAll(strings.ToLower(rest), "_", "-"), 3, ""
		known := strings.Contains(name+"_", "_PORT_") || strings.Contains(name, "_SERVICE_") ||
			slices.ContainsFunc(testVariables, func(prefix string) bool { return strings.HasPrefix(rest, prefix) })
		for i := range options {
			o := &options[i]
			if o.env == name {
				known, meant = true, ""
				break
			}
			if d := text.Distance(o.name, typed); o.env != "" && d < nearest && 3*d < len(typed) {
				nearest, meant = d, o.env
			}
		}
		switch {
		case meant != "":
			errs = append(errs, fmt.Errorf("unknown variable %s; did you mean %s?", name, meant))
		case !known:
			errs = append(errs, fmt.Errorf("unknown variable %s; unset it, or find the one you mean in `muster help run`", name))
		}
	}
	return errs
}

// convert reads the text of one option. Seconds may have units, which torchrun's may not.
func (o *option) convert(given string) (any, error) {
	if o.name == "hang-timeout" && given == "auto" {
		return agent.HangAuto, nil
	}
	if o.arg == "SECONDS" {
		if value, err := o.read(text.Seconds(given)); err == nil {
			return value, nil
		}
		if _, err := o.read(given); err != nil {
			return nil, console.Refusal(err,
				console.Quote(given)+" is not a time; give seconds, or a time such as 90s, 10m or 1h30m")
		}
	}
	return o.read(given)
}

func (o *option) read(text string) (any, error) {
	switch o.kind {
	case kindInt:
		return parseInt(text)
	case kindFloat:
		return parseFloat(text)
	case kindList:
		return splitList(text), nil
	case kindEach:
		return strings.Split(text, "\x00"), nil
	case kindFlag:
		n, err := parseInt(text)
		if err != nil {
			return nil, console.Refusal(fmt.Errorf("%w; want 1 or 0", err), console.Plain(err)+"; give 1 or 0")
		}
		return n != 0, nil
	default:
		return text, nil
	}
}

// parseInt reads what Python's int() reads, within the range of an int.
func parseInt(text string) (int, error) {
	digits, ok := plainNumber(text)
	n, err := strconv.Atoi(digits)
	switch {
	case ok && errors.Is(err, strconv.ErrRange):
		return 0, console.Refusal(fmt.Errorf("int value out of range: %s", console.Quote(text)),
			console.Quote(text)+" is too large a number")
	case !ok || err != nil:
		return 0, console.Refusal(fmt.Errorf("invalid int value: %s", console.Quote(text)),
			console.Quote(text)+" is not a whole number")
	}
	return n, nil
}

// parseFloat reads what Python's float() reads.
func parseFloat(text string) (float64, error) {
	number, ok := plainNumber(text)
	if strings.ContainsAny(number, "xXpP") { // hexadecimal is Go's, not Python's
		ok = false
	}
	f, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, console.Refusal(fmt.Errorf("invalid float value: %s", console.Quote(text)),
			console.Quote(text)+" is not a number")
	}
	return f, nil
}

// plainNumber removes what Python allows around and in numbers: blanks, and
// single underscores between digits.
func plainNumber(text string) (string, bool) {
	text = strings.TrimSpace(text)
	if !strings.Contains(text, "_") {
		return text, true
	}
	digit := func(i int) bool { return i >= 0 && i < len(text) && text[i] >= '0' && text[i] <= '9' }
	for i := range len(text) {
		if text[i] == '_' && !(digit(i-1) && digit(i+1)) {
			return text, false
		}
	}
	return strings.ReplaceAll(text, "_", ""), true
}

// splitList splits at commas; two commas in a row are one that does not split.
// The empty text is a list of one empty item.
// Source: comma_separated_list in torch/distributed/run.py.
func splitList(text string) []string {
	items := strings.Split(strings.ReplaceAll(text, ",,", "\x00"), ",") // no argument has a NUL
	for i := range items {
		items[i] = strings.ReplaceAll(items[i], "\x00", ",")
	}
	return items
}

// refuse says what is wrong with an option, and where its value is from.
func (o *option) refuse(err error, from string) error {
	return located(o.advise(console.Refusal(fmt.Errorf("argument %s: %w", o, err),
		"--"+o.name+": "+console.Plain(err))), from)
}

// advise adds what the option takes to an error about it that gives no advice.
func (o *option) advise(err error) error {
	message := console.Plain(err)
	if _, advice := console.Advised(message); advice != "" || !o.takesArg() || o.arg == "FILE" {
		return err
	}
	if o.arg == "SECONDS" {
		return console.Refusal(err, message+"; give seconds, or a time such as 90s, 10m or 1h30m")
	}
	if rest, ok := strings.CutPrefix(message, strings.ReplaceAll(o.name, "-", " ")); ok && o.kind == kindInt {
		return console.Refusal(err, "--"+o.name+rest) // of launch.Resolve, with what is allowed
	}
	return console.Refusal(err, message+"; write --"+o.name+" "+o.arg)
}

// located is an error about a value with where that is from, as in told.from.
func located(err error, from string) error {
	switch {
	case from == "":
		return err
	case strings.Contains(from, ":"):
		return console.Refusal(fmt.Errorf("%s: %w", from, err), from+": "+console.Plain(err))
	}
	return console.Refusal(fmt.Errorf("%w (from %s)", err, from), console.Plain(err)+" (from "+from+")")
}

// logger makes the logger that --verbose, --quiet, --log-format and LOGLEVEL describe.
func (v values) logger(w io.Writer, lookup func(string) (string, bool)) (*slog.Logger, error) {
	logger, err := console.NewLogger(w, lookup)
	h := logger.Handler().(*console.LogHandler)
	switch verbose, quiet := v.flag("verbose"), v.flag("quiet"); {
	case verbose && quiet:
		err = errors.Join(err, errors.New("--verbose and --quiet exclude each other; give one of them"))
	case verbose:
		h.Level = slog.LevelDebug
	case quiet:
		h.Level = slog.LevelError
	}
	if v.text("log-format") == "json" {
		h.UseJSON()
	}
	return logger, err
}
