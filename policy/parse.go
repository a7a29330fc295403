package policy

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/format/yamlfile"
)

// defaultName is the name of Policy.Default.
const defaultName = "default"

// Bounds of a file.
const (
	maxRules   = 200
	maxList    = 100  // members of one list
	maxPattern = 1000 // bytes of one
	maxName    = 64   // bytes of a rule's name
	maxCount   = 1_000_000
	maxTime    = 366 * 24 * time.Hour
)

// What a file has. The library refuses other keys, and names these types where it does.
type (
	policy struct {
		MaxRestarts *count `yaml:"max_restarts"`
		Rules       []rule
		Default     *reaction
		NoProgress  *progress `yaml:"no_progress"`
	}
	rule struct {
		Name     *string
		Match    match
		reaction `yaml:",inline"`
	}
	match    struct{ Exit, Signal, Cause, Stderr, Host, Role texts }
	reaction struct {
		Action  Action
		Budget  *budget
		Backoff *Backoff
		All     bool
	}
	budget struct {
		Restarts *count
		Window   time.Duration
	}
	progress struct {
		Restarts  count
		Heartbeat bool
		File      texts
	}
)

// A count is a whole number; for an int the library would make 1 of 1.5.
type count int

func (c *count) UnmarshalYAML(n *yaml.Node) error {
	i, err := strconv.Atoi(n.Value)
	if err != nil || n.ShortTag() != "!!int" || i < 0 || i > maxCount {
		return yamlfile.Wrong(n, "want a whole number from 0 to %d, got %s", maxCount, yamlfile.Shown(n))
	}
	*c = count(i)
	return nil
}

// texts is a list of texts, or one that stands for such a list. It is in a line if it is there.
type texts struct {
	line int
	list []string
}

func (t *texts) UnmarshalYAML(n *yaml.Node) error {
	t.line = n.Line
	if n.Kind != yaml.SequenceNode {
		t.list = make([]string, 1)
		return n.Decode(&t.list[0])
	}
	return n.Decode(&t.list)
}

// An Error is one thing that is wrong with a file: File, Line and Message. Line is from 1, or 0
// where it is about the whole file. Parse and Load join several, so that an editor can show each
// in its place.
type Error = yamlfile.Error

// Load reads the policy in a file of at most 64 KiB. What is wrong with it comes as
// from Parse.
func Load(file string) (*Policy, error) {
	text, err := yamlfile.Read(file)
	if err != nil {
		return nil, err
	}
	return Parse(text, file)
}

// Parse reads a policy. The error joins what is wrong with the form of the text or, if that is
// right, with its values, each an *Error; file is its name in them.
func Parse(text []byte, file string) (*Policy, error) {
	v := &validator{file: file}
	var root yaml.Node
	if err := yamlfile.Decode(text, file, &root); err != nil {
		return nil, err
	}
	if root.Kind == 0 || root.Content[0].ShortTag() == "!!null" {
		v.fail(0, "it is empty; write {} for an empty policy")
	}
	v.plain(&root)
	var said policy
	if err := errors.Join(append(v.errs, yamlfile.Decode(text, file, &said))...); err != nil {
		return nil, err
	}
	p := v.policy(&said, root.Content[0])
	if v.errs != nil {
		return nil, errors.Join(v.errs...)
	}
	return p, nil
}

// A validator makes a Policy of what a file says, and gathers what is wrong with it.
type validator struct {
	file string
	errs []error
}

func (v *validator) fail(line int, format string, a ...any) {
	v.errs = append(v.errs, &Error{File: v.file, Line: line, Message: fmt.Sprintf(format, a...)})
}

// plain refuses what the library would pass over, or follow to something larger.
func (v *validator) plain(n *yaml.Node) {
	for i, child := range n.Content {
		switch {
		case child.Kind == yaml.AliasNode:
			v.fail(child.Line, "an alias (*%s); write out what it stands for", child.Value)
		case child.ShortTag() == "!!merge":
			v.fail(child.Line, "a merge (<<); write out what it stands for")
		case child.ShortTag() != "!!null":
		case n.Kind == yaml.MappingNode && i%2 == 1:
			v.fail(child.Line, "%s has no value", yamlfile.Quote(n.Content[i-1].Value))
		case n.Kind == yaml.SequenceNode:
			v.fail(child.Line, "a list has nothing as a member")
		}
		v.plain(child)
	}
}

// under returns the value of a key, nil if there is none.
func under(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func (v *validator) policy(said *policy, root *yaml.Node) *Policy {
	p := &Policy{File: v.file, MaxRestarts: -1, Default: Rule{Name: defaultName, Action: Retry}}
	if said.MaxRestarts != nil {
		p.MaxRestarts = int(*said.MaxRestarts)
	}
	for i := range said.Rules {
		line := under(root, "rules").Content[i].Line
		if i == maxRules {
			v.fail(line, "more than %d rules", maxRules)
			break
		}
		p.Rules = append(p.Rules, v.rule(&said.Rules[i], line, fmt.Sprint("#", i+1), p.Rules))
	}
	if said.Default != nil {
		p.Default.Line = under(root, "default").Line
		v.reaction(said.Default, &p.Default)
	}
	if n := said.NoProgress; n != nil {
		p.NoProgress = &NoProgress{int(n.Restarts), n.Heartbeat, many(v, &n.File, line)}
		at := under(root, "no_progress").Line
		if n.Restarts == 0 {
			v.fail(at, "no_progress wants restarts, 1 or more")
		}
		if !n.Heartbeat && n.File.line == 0 {
			v.fail(at, "no_progress looks at nothing: set heartbeat: true, or name a file")
		}
	}
	return p
}

func (v *validator) rule(said *rule, at int, name string, before []Rule) Rule {
	m := &said.Match
	r := Rule{Name: name, Line: at, Match: Match{
		Exits: many(v, &m.Exit, exits), Signals: many(v, &m.Signal, signal), Causes: many(v, &m.Cause, cause),
		Stderr: many(v, &m.Stderr, pattern), Hosts: many(v, &m.Host, glob), Roles: many(v, &m.Role, glob),
	}}
	if said.Name != nil {
		r.Name = *said.Name
		if _, err := line(r.Name); err != nil || len(r.Name) > maxName || r.Name == defaultName {
			v.fail(at, "a rule cannot have the name %s: want a text of at most %d bytes, and not %s",
				yamlfile.Quote(r.Name), maxName, defaultName)
		}
	}
	if i := slices.IndexFunc(before, func(other Rule) bool { return other.Name == r.Name }); i >= 0 {
		v.fail(at, "a second rule with the name %s; the first is in line %d", r.Name, before[i].Line)
	}
	v.reaction(&said.reaction, &r)
	for _, c := range r.Causes {
		switch {
		case c == failure.CauseHostLost && r.Action == Drain:
			v.fail(at, "a rule for cause %s cannot drain: the host has gone already", c)
		case c == failure.CauseUninterruptible && r.Action == Retry:
			v.fail(at, "a rule for cause %s cannot retry: the worker may still hold its devices; stop, or drain the host", c)
		}
	}
	return r
}

// reaction fills in what a rule, or the default, does.
func (v *validator) reaction(said *reaction, r *Rule) {
	r.Action, r.All, r.Backoff = said.Action, said.All, said.Backoff
	if !slices.Contains(actions, r.Action) {
		v.fail(r.Line, "rule %s has the action %s: want %s", r.Name, yamlfile.Quote(string(r.Action)), list(actions))
	} else if r.Action != Retry && (said.Budget != nil || r.Backoff != nil || r.All) {
		v.fail(r.Line, "budget, backoff and all are for action retry; this one is %s", r.Action)
	}
	if b := said.Budget; b != nil {
		r.Budget = &Budget{Window: b.Window}
		if b.Restarts == nil {
			v.fail(r.Line, "budget without restarts")
		} else {
			r.Budget.Restarts = int(*b.Restarts)
		}
		v.within(r.Line, "window", b.Window, maxTime)
	}
	if b := r.Backoff; b != nil {
		v.backoff(r.Line, b)
	}
}

// backoff checks a back-off, and fills in what it does not say.
func (v *validator) backoff(line int, b *Backoff) {
	v.within(line, "initial", b.Initial, maxDelay)
	v.within(line, "max", b.Max, maxDelay)
	v.within(line, "reset", b.Reset, maxTime)
	if b.Initial == 0 {
		v.fail(line, "backoff without initial, the time to wait at first")
	}
	if b.Max == 0 {
		b.Max = max(defaultMax, b.Initial)
	} else if b.Max < b.Initial {
		v.fail(line, "max %s is less than initial %s", short(b.Max), short(b.Initial))
	}
	b.Reset, b.Factor = cmp.Or(b.Reset, defaultReset), cmp.Or(b.Factor, defaultFactor)
	if !(b.Factor >= 1 && b.Factor <= 1000) { // nor NaN
		v.fail(line, "factor is %v; want a number from 1 to 1000", b.Factor)
	}
	if !(b.Jitter >= 0 && b.Jitter <= 1) {
		v.fail(line, "jitter is %v; want a number from 0 to 1", b.Jitter)
	}
}

func (v *validator) within(line int, what string, d, most time.Duration) {
	if d < 0 || d > most {
		v.fail(line, "%s is %s; want more than 0, at most %s", what, short(d), short(most))
	}
}

// many parses each of some texts.
func many[T any](v *validator, t *texts, parse func(string) (T, error)) (all []T) {
	if n := len(t.list); t.line > 0 && (n == 0 || n > maxList) {
		v.fail(t.line, "a list of %d; want 1 to %d members", n, maxList)
		return nil
	}
	for _, s := range t.list {
		_, err := line(s)
		if err == nil {
			var one T
			one, err = parse(s)
			all = append(all, one)
		}
		if err != nil {
			v.fail(t.line, "%v", err)
		}
	}
	return all
}

// line refuses what is not one line of text.
func line(s string) (string, error) {
	switch {
	case s == "":
		return "", errors.New("an empty text")
	case len(s) > maxPattern:
		return "", fmt.Errorf("a text of more than %d bytes", maxPattern)
	case strings.ContainsFunc(s, unicode.IsControl):
		return "", fmt.Errorf("%s has a control character", yamlfile.Quote(s))
	}
	return s, nil
}

// cause reads a cause; blanks, dashes and underscores are the same.
func cause(s string) (failure.Cause, error) {
	c := failure.Cause(strings.NewReplacer("_", " ", "-", " ").Replace(s))
	if !slices.Contains(causes, c) {
		return "", fmt.Errorf("there is no cause %s; give %s", yamlfile.Quote(s), list(causes))
	}
	return c, nil
}

// exits reads an exit status, or a range of them: 70-79.
func exits(s string) (Range, error) {
	first, last, ranged := strings.Cut(s, "-")
	if !ranged {
		last = first
	}
	from, err1 := strconv.Atoi(strings.TrimSpace(first))
	to, err2 := strconv.Atoi(strings.TrimSpace(last))
	if err1 != nil || err2 != nil || from < 1 || from > to || to > 255 {
		return Range{}, fmt.Errorf("want an exit status from 1 to 255, or a range such as 70-79, got %s", yamlfile.Quote(s))
	}
	return Range{from, to}, nil
}

// signal reads a signal's name, with or without SIG, or its number.
func signal(s string) (syscall.Signal, error) {
	if sig := text.ParseSignal(s); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("there is no signal %s: want a name such as SIGBUS, or a number from 1 to 64", yamlfile.Quote(s))
}

// pattern reads a regular expression, whose ^ and $ match at lines.
func pattern(s string) (*regexp.Regexp, error) {
	re, err := regexp.Compile("(?m)" + s)
	if err != nil {
		return nil, fmt.Errorf("%s is not a regular expression (RE2): %w", yamlfile.Quote(s), err)
	}
	return re, nil
}

// glob reads a name or a pattern of names.
func glob(s string) (string, error) {
	if _, err := path.Match(s, ""); err != nil {
		return "", fmt.Errorf("%s is not a pattern: * and ? stand for characters, [a-c] for one of some", yamlfile.Quote(s))
	}
	return s, nil
}

// list is "retry, stop or drain".
func list[T ~string](all []T) string {
	var s []string
	for _, w := range all {
		s = append(s, string(w))
	}
	return strings.Join(s[:len(s)-1], ", ") + " or " + s[len(s)-1]
}
