package policy

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/internal/yamlfile"
)

// The functions below read one value each. Their errors say what is wanted and what is
// there; the reader adds where.

func number(least int) func(*yaml.Node) (int, error) {
	return func(n *yaml.Node) (int, error) {
		i, err := strconv.Atoi(n.Value)
		if err != nil || n.ShortTag() != "!!int" || i < least || i > maxCount {
			return 0, fmt.Errorf("want a whole number from %d to %d, got %s", least, maxCount, yamlfile.Shown(n))
		}
		return i, nil
	}
}

func float(least, most float64) func(*yaml.Node) (float64, error) {
	return func(n *yaml.Node) (float64, error) {
		f, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || n.ShortTag() == "!!str" || !(f >= least && f <= most) { // nor NaN
			return 0, fmt.Errorf("want a number from %v to %v, got %s", least, most, yamlfile.Shown(n))
		}
		return f, nil
	}
}

func boolean(n *yaml.Node) (bool, error) {
	if n.ShortTag() != "!!bool" {
		return false, fmt.Errorf("want true or false, got %s", yamlfile.Shown(n))
	}
	return strings.EqualFold(n.Value, "true"), nil
}

// maxDuration is a year.
const maxDuration = 366 * 24 * time.Hour

// duration reads a time with its unit, more than 0.
func duration(n *yaml.Node) (time.Duration, error) {
	const want = "a time with its unit, such as 30s, 5m or 1h30m"
	d, err := time.ParseDuration(n.Value)
	_, bare := strconv.ParseFloat(n.Value, 64)
	switch {
	case bare == nil:
		return 0, fmt.Errorf("%s has no unit: want %s", yamlfile.Quote(n.Value), want)
	case err != nil:
		return 0, fmt.Errorf("want %s, got %s", want, yamlfile.Shown(n))
	case d <= 0 || d > maxDuration:
		return 0, fmt.Errorf("want a time that is more than 0 and at most a year, got %s", n.Value)
	}
	return d, nil
}

// line reads a text of one line that is not empty.
func line(n *yaml.Node) (string, error) {
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", fmt.Errorf("want a text, got %s", yamlfile.Shown(n))
	case n.Value == "":
		return "", errors.New("an empty text")
	case len(n.Value) > maxPattern:
		return "", fmt.Errorf("a text of more than %d bytes", maxPattern)
	case strings.ContainsFunc(n.Value, unicode.IsControl):
		return "", fmt.Errorf("%s has a control character", yamlfile.Quote(n.Value))
	}
	return n.Value, nil
}

func name(n *yaml.Node) (string, error) {
	s, err := line(n)
	if err == nil && len(s) > maxName {
		err = fmt.Errorf("a name of more than %d bytes", maxName)
	}
	return s, err
}

func action(n *yaml.Node) (Action, error) {
	s, err := line(n)
	if err == nil && !slices.Contains(actions, Action(s)) {
		err = fmt.Errorf("there is no action %s: want %s%s", yamlfile.Quote(s), list(actions), yamlfile.Suggest(s, words(actions)))
	}
	return Action(s), err
}

// cause reads a cause; blanks, dashes and underscores are the same.
func cause(n *yaml.Node) (failure.Cause, error) {
	s, err := line(n)
	plain := failure.Cause(strings.NewReplacer("_", " ", "-", " ").Replace(s))
	if err == nil && !slices.Contains(causes, plain) {
		err = fmt.Errorf("there is no cause %s%s; there are %s", yamlfile.Quote(s), yamlfile.Suggest(s, words(causes)), list(causes))
	}
	return plain, err
}

// exits reads an exit status, or a range of them: 70-79.
func exits(n *yaml.Node) (Range, error) {
	s, err := line(n)
	if err != nil {
		return Range{}, err
	}
	first, last, ranged := strings.Cut(s, "-")
	if !ranged {
		last = first
	}
	from, err1 := strconv.Atoi(strings.TrimSpace(first))
	to, err2 := strconv.Atoi(strings.TrimSpace(last))
	switch {
	case err1 != nil || err2 != nil || from > to || to > 255 || from < 0:
		hint := ""
		if text.Signal(strings.ToUpper(s)) != 0 {
			hint = "; for a signal there is the key signal"
		}
		return Range{}, fmt.Errorf("want an exit status from 1 to 255, or a range such as 70-79, got %s%s", yamlfile.Quote(s), hint)
	case from == 0:
		return Range{}, fmt.Errorf("%s: a worker with exit status 0 has not failed", s)
	}
	return Range{from, to}, nil
}

// signal reads a signal's name, with or without SIG, or its number.
func signal(n *yaml.Node) (syscall.Signal, error) {
	s, err := line(n)
	sig := text.ParseSignal(s)
	if err == nil && sig == 0 {
		err = fmt.Errorf("there is no signal %s: want a name such as SIGBUS, or a number from 1 to 64", yamlfile.Quote(s))
	}
	return sig, err
}

// pattern reads a regular expression, whose ^ and $ match at lines.
func pattern(n *yaml.Node) (*regexp.Regexp, error) {
	const lines = "(?m)"
	s, err := line(n)
	if err != nil {
		return nil, err
	}
	re, err := regexp.Compile(lines + s)
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		why := e.Code.String()
		if expr := strings.TrimPrefix(e.Expr, lines); expr != "" {
			why += ": " + yamlfile.Quote(expr)
		}
		err = fmt.Errorf("%s is no regular expression (RE2): %s", yamlfile.Quote(s), why)
	}
	return re, err
}

// glob reads a name or a pattern of names.
func glob(n *yaml.Node) (string, error) {
	s, err := line(n)
	if err != nil {
		return "", err
	}
	if _, err := path.Match(s, ""); err != nil {
		return "", fmt.Errorf("%s is no pattern: * and ? stand for characters, [a-c] for one of some", yamlfile.Quote(s))
	}
	return s, nil
}

func words[T ~string](all []T) []string {
	var s []string
	for _, w := range all {
		s = append(s, string(w))
	}
	return s
}

// list is "retry, stop or drain".
func list[T ~string](all []T) string {
	s := words(all)
	return strings.Join(s[:len(s)-1], ", ") + " or " + s[len(s)-1]
}
