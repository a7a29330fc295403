package policy

import (
	"errors"
	"fmt"
	"math"
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

	"github.com/muster-run/muster/internal/text"
)

// fields says what to do with the value of each key that a mapping may have.
type fields map[string]func(*yaml.Node)

// mapping reads a mapping; false if n is something else.
func (r *reader) mapping(n *yaml.Node, what string, known fields) bool {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s: want a mapping of keys to values, got %s", what, kindOf(n))
		return false
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			r.fail(key, "%s: a key is %s", what, kindOf(key))
		case read == nil:
			hint := suggest(key.Value, keys(known))
			if hint == "" {
				hint = "; there are " + strings.Join(keys(known), ", ")
			}
			r.fail(key, "%s has no key %s%s", what, quote(key.Value), hint)
		case seen[key.Value] > 0:
			r.fail(key, "%s has %s twice; the first is in line %d", what, key.Value, seen[key.Value])
		case value.Tag == "!!null" && value.Kind == yaml.ScalarNode:
			r.fail(key, "%s has no value", key.Value)
		default:
			read(value)
		}
		seen[key.Value] = max(seen[key.Value], key.Line)
	}
	return true
}

// has says whether a mapping has a key.
func has(n *yaml.Node, key string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

func keys(known fields) []string {
	var all []string
	for key := range known {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// each reads the members of a list, or the one value that stands for such a list.
func (r *reader) each(n *yaml.Node, read func(*yaml.Node)) {
	switch {
	case n.Kind != yaml.SequenceNode:
		read(n)
	case len(n.Content) == 0:
		r.fail(n, "an empty list, which nothing is in")
	case len(n.Content) > maxList:
		r.fail(n, "a list of more than %d", maxList)
	default:
		for _, item := range n.Content {
			read(item)
		}
	}
}

// text reads a scalar of one line that is not empty.
func (r *reader) text(n *yaml.Node) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		r.fail(n, "want a text, got %s", kindOf(n))
	case n.Value == "":
		r.fail(n, "an empty text")
	case len(n.Value) > maxPattern:
		r.fail(n, "a text of more than %d bytes", maxPattern)
	case strings.ContainsFunc(n.Value, unicode.IsControl):
		r.fail(n, "%s has a control character", quote(n.Value))
	default:
		return n.Value, true
	}
	return "", false
}

// scalar reads a scalar that YAML takes for something of a kind.
func (r *reader) scalar(n *yaml.Node, want string, tags ...string) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		r.fail(n, "want %s, got %s", want, kindOf(n))
		return "", false
	}
	if !slices.Contains(tags, n.ShortTag()) {
		r.fail(n, "want %s, got %s", want, quote(n.Value))
		return "", false
	}
	return n.Value, true
}

func (r *reader) number(n *yaml.Node, least int) int {
	want := fmt.Sprintf("a whole number from %d to %d", least, maxCount)
	text, ok := r.scalar(n, want, "!!int")
	if !ok {
		return least
	}
	i, err := strconv.Atoi(text)
	if err != nil || i < least || i > maxCount {
		r.fail(n, "want %s, got %s", want, quote(text))
		return least
	}
	return i
}

func (r *reader) float(n *yaml.Node, least, most float64) float64 {
	want := fmt.Sprintf("a number from %v to %v", least, most)
	text, ok := r.scalar(n, want, "!!int", "!!float")
	if !ok {
		return least
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || f < least || f > most {
		r.fail(n, "want %s, got %s", want, quote(text))
		return least
	}
	return f
}

func (r *reader) boolean(n *yaml.Node) bool {
	text, _ := r.scalar(n, "true or false", "!!bool")
	return strings.EqualFold(text, "true")
}

// maxDuration is a year.
const maxDuration = 366 * 24 * time.Hour

// duration reads a time with its unit, more than 0; 0 is returned with an error.
func (r *reader) duration(n *yaml.Node) time.Duration {
	const want = "a time with its unit, such as 30s, 5m or 1h30m"
	if n.Kind != yaml.ScalarNode {
		r.fail(n, "want %s, got %s", want, kindOf(n))
		return 0
	}
	d, err := time.ParseDuration(n.Value)
	if _, bare := strconv.ParseFloat(n.Value, 64); bare == nil {
		r.fail(n, "%s has no unit: want %s", quote(n.Value), want)
		return 0
	}
	if err != nil {
		r.fail(n, "want %s, got %s", want, quote(n.Value))
		return 0
	}
	if d <= 0 || d > maxDuration {
		r.fail(n, "want a time that is more than 0 and at most a year, got %s", n.Value)
		return 0
	}
	return d
}

func (r *reader) name(n *yaml.Node, otherwise string) string {
	text, ok := r.text(n)
	switch {
	case !ok:
		return otherwise
	case len(text) > maxName:
		r.fail(n, "a name of more than %d bytes", maxName)
		return otherwise
	}
	return text
}

func (r *reader) action(n *yaml.Node) Action {
	text, ok := r.text(n)
	if !ok {
		return ""
	}
	if i := slices.Index(actions, Action(text)); i >= 0 {
		return actions[i]
	}
	r.fail(n, "there is no action %s: want %s%s", quote(text), list(actions), suggest(text, words(actions)))
	return ""
}

// cause reads a cause; blanks, dashes and underscores are the same.
func (r *reader) cause(n *yaml.Node) Cause {
	text, ok := r.text(n)
	if !ok {
		return ""
	}
	plain := Cause(strings.NewReplacer("_", " ", "-", " ").Replace(text))
	if slices.Contains(causes, plain) {
		return plain
	}
	r.fail(n, "there is no cause %s%s; there are %s", quote(text), suggest(text, words(causes)), list(causes))
	return ""
}

// exits reads an exit status, or a range of them: 70-79.
func (r *reader) exits(n *yaml.Node) Range {
	value, ok := r.text(n)
	if !ok {
		return Range{}
	}
	first, last, ranged := strings.Cut(value, "-")
	if !ranged {
		last = first
	}
	from, err1 := strconv.Atoi(strings.TrimSpace(first))
	to, err2 := strconv.Atoi(strings.TrimSpace(last))
	switch {
	case err1 != nil || err2 != nil || from > to || to > 255 || from < 0:
		hint := ""
		if text.Signal(strings.ToUpper(value)) != 0 {
			hint = "; for a signal there is the key signal"
		}
		r.fail(n, "want an exit status from 1 to 255, or a range such as 70-79, got %s%s", quote(value), hint)
		return Range{}
	case from == 0:
		r.fail(n, "%s: a worker with exit status 0 has not failed", value)
		return Range{}
	}
	return Range{from, to}
}

// signal reads a signal's name, with or without SIG, or its number.
func (r *reader) signal(n *yaml.Node) syscall.Signal {
	value, ok := r.text(n)
	if !ok {
		return 0
	}
	if sig := text.ParseSignal(value); sig != 0 {
		return sig
	}
	r.fail(n, "there is no signal %s: want a name such as SIGBUS, or a number from 1 to 64", quote(value))
	return 0
}

func (r *reader) pattern(n *yaml.Node) *regexp.Regexp {
	text, ok := r.text(n)
	if !ok {
		return nil
	}
	re, err := compile(text)
	if err != nil {
		why := err.Error()
		if e, ok := errors.AsType[*syntax.Error](err); ok {
			why = e.Code.String()
			if expr := strings.TrimPrefix(e.Expr, lines); expr != "" {
				why += ": " + quote(expr)
			}
		}
		r.fail(n, "%s is no regular expression (RE2): %s", quote(text), why)
		return nil
	}
	return re
}

// glob reads a name or a pattern of names.
func (r *reader) glob(n *yaml.Node) string {
	text, ok := r.text(n)
	if !ok {
		return ""
	}
	if _, err := path.Match(text, ""); err != nil {
		r.fail(n, "%s is no pattern: * and ? stand for characters, [a-c] for one of some", quote(text))
	}
	return text
}

// kindOf says what a node is, for people.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if n.Tag == "!!null" {
		return "nothing"
	}
	return quote(n.Value)
}

// quote shows a text of the file, all of it if that is short.
func quote(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + "..."
	}
	return strconv.Quote(text)
}

// suggest is what somebody may have meant: ", did you mean rules?".
func suggest(typed string, words []string) string {
	if best := text.Nearest(typed, words...); best != "" {
		return "; did you mean " + best + "?"
	}
	return ""
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
