package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file.
const (
	MaxSize    = 64 << 10 // bytes
	maxRules   = 200
	maxList    = 100  // members of one list
	maxPattern = 1000 // bytes of one
	maxName    = 64   // bytes of a rule's name
	maxCount   = 1_000_000
	maxShown   = 50 // errors that are reported
)

// defaultName is the name of Policy.Default.
const defaultName = "default"

// An Error is one thing that is wrong with a file.
type Error struct {
	File         string
	Line, Column int // from 1; 0 where it is about the whole file
	Message      string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Load reads the policy in a file. What is wrong with it comes as from Parse.
func Load(file string) (*Policy, error) {
	info, err := os.Stat(file) // or opening a FIFO would wait for who writes it
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{File: file, Message: "it is no regular file"}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	return Parse(text, file)
}

// Parse reads a policy. The error joins everything that is wrong, each an *Error, in
// the order of the text; file is its name in them.
func Parse(text []byte, file string) (*Policy, error) {
	r := &reader{file: file}
	p := &Policy{File: file, MaxRestarts: -1, Default: Rule{Name: defaultName, Action: Retry}}
	if root := r.document(text); root != nil {
		r.policy(root, p)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// A reader gathers what is wrong.
type reader struct {
	file string
	errs []*Error
}

func (r *reader) fail(n *yaml.Node, format string, a ...any) {
	r.errs = append(r.errs, &Error{r.file, n.Line, n.Column, fmt.Sprintf(format, a...)})
}

func (r *reader) err() error {
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	var errs []error
	for i, e := range r.errs {
		if i == maxShown {
			errs = append(errs, &Error{File: r.file, Message: fmt.Sprintf("and %d more", len(r.errs)-i)})
			break
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// document returns the root of the one document in text; nil if there is none.
func (r *reader) document(text []byte) (root *yaml.Node) {
	whole := &yaml.Node{}
	if len(text) > MaxSize {
		r.fail(whole, "it is larger than %d bytes", MaxSize)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := decode(decoder, &doc); {
	case errors.Is(err, io.EOF):
		r.fail(whole, "it is empty; an empty policy is {}")
		return nil
	case err != nil:
		r.errs = append(r.errs, r.syntax(text, err))
		return nil
	}
	if err := decode(decoder, &more); !errors.Is(err, io.EOF) {
		if err != nil {
			r.errs = append(r.errs, r.syntax(text, err))
		} else {
			r.fail(&more, "a second document; a policy is one")
		}
	}
	if len(doc.Content) != 1 {
		return nil
	}
	r.plain(doc.Content[0])
	return doc.Content[0]
}

// decode reads the next document. The parser is not ours, so a fault of it is an
// error of the file.
func decode(d *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("yaml: cannot be read: %v", fault)
		}
	}()
	return d.Decode(n)
}

// decodeAll says what is wrong with the documents of a text.
func decodeAll(text []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		if err := decode(d, new(yaml.Node)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// syntax is an error of the parser: "yaml: line 3: did not find …". Of some it knows
// only where what is not complete begins; the line is then the first one after which
// the text cannot be completed any more.
func (r *reader) syntax(text []byte, err error) *Error {
	e := &Error{File: r.file, Message: strings.TrimPrefix(err.Error(), "yaml: ")}
	if rest, ok := strings.CutPrefix(e.Message, "line "); ok {
		number, message, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			e.Line, e.Column, e.Message = n, 1, message
		}
	}
	if strings.HasPrefix(e.Message, "did not find expected") {
		lines := bytes.SplitAfter(text, []byte("\n"))
		e.Column, e.Line = 1, 1+sort.Search(len(lines), func(i int) bool {
			again := decodeAll(bytes.Join(lines[:i+1], nil))
			return again != nil && again.Error() == err.Error()
		})
	}
	e.Message = "this is not YAML: " + e.Message
	return e
}

// plain refuses what makes a text mean more than it shows.
func (r *reader) plain(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.fail(n, "an alias (*%s); write out what it stands for", n.Value)
	case n.Anchor != "":
		r.fail(n, "an anchor (&%s); a policy has none", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.fail(n, "a tag (%s); a policy has none", n.Tag)
	}
	for _, child := range n.Content {
		r.plain(child)
	}
}

// policy reads the whole.
func (r *reader) policy(n *yaml.Node, p *Policy) {
	rules := 0
	r.mapping(n, "a policy", fields{
		"max_restarts": func(n *yaml.Node) { p.MaxRestarts = r.number(n, 0) },
		"rules": func(n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				r.fail(n, "rules: want a list, got %s", kindOf(n))
				return
			}
			for _, item := range n.Content {
				if rules++; rules > maxRules {
					r.fail(item, "more than %d rules", maxRules)
					return
				}
				rule := Rule{Name: fmt.Sprint("#", rules), Line: item.Line, Action: ""}
				r.rule(item, &rule, true)
				r.unique(item, p, &rule)
				p.Rules = append(p.Rules, rule)
			}
		},
		"default": func(n *yaml.Node) {
			p.Default.Line = n.Line
			r.rule(n, &p.Default, false)
		},
		"no_progress": func(n *yaml.Node) { p.NoProgress = r.noProgress(n) },
	})
}

// unique reports a name that two rules have.
func (r *reader) unique(n *yaml.Node, p *Policy, rule *Rule) {
	if rule.Name == defaultName {
		r.fail(n, "a rule cannot have the name %s", defaultName)
	}
	for i := range p.Rules {
		if p.Rules[i].Name == rule.Name {
			r.fail(n, "a second rule with the name %s; the first is in line %d", rule.Name, p.Rules[i].Line)
			return
		}
	}
}

// rule reads a rule, or the default, which has neither name nor match.
func (r *reader) rule(n *yaml.Node, rule *Rule, named bool) {
	var budget, backoff *yaml.Node
	all := fields{
		"action":  func(n *yaml.Node) { rule.Action = r.action(n) },
		"budget":  func(n *yaml.Node) { budget, rule.Budget = n, r.budget(n) },
		"backoff": func(n *yaml.Node) { backoff, rule.Backoff = n, r.backoff(n) },
	}
	what := "the default"
	if named {
		what = "a rule"
		all["name"] = func(n *yaml.Node) { rule.Name = r.name(n, rule.Name) }
		all["match"] = func(n *yaml.Node) { r.match(n, &rule.Match) }
	}
	if !r.mapping(n, what, all) {
		return
	}
	if rule.Action == "" {
		if !has(n, "action") {
			r.fail(n, "%s without an action: want %s", what, list(actions))
		}
		return
	}
	if rule.Action != Retry {
		for key, at := range map[string]*yaml.Node{"budget": budget, "backoff": backoff} {
			if at != nil {
				r.fail(at, "%s is for action retry; this one is %s", key, rule.Action)
			}
		}
	}
	for _, c := range rule.Causes {
		switch {
		case c == HostLost && rule.Action == Drain:
			r.fail(n, "a rule for cause %s cannot drain: the host has gone already", c)
		case c == Uninterruptible && rule.Action == Retry:
			r.fail(n, "a rule for cause %s cannot retry: the worker may still hold its devices; stop, or drain the host", c)
		}
	}
}

// match reads the conditions of a rule.
func (r *reader) match(n *yaml.Node, m *Match) {
	r.mapping(n, "match", fields{
		"exit": func(n *yaml.Node) {
			r.each(n, func(n *yaml.Node) { m.Exits = append(m.Exits, r.exits(n)) })
		},
		"signal": func(n *yaml.Node) {
			r.each(n, func(n *yaml.Node) { m.Signals = append(m.Signals, r.signal(n)) })
		},
		"cause": func(n *yaml.Node) {
			r.each(n, func(n *yaml.Node) { m.Causes = append(m.Causes, r.cause(n)) })
		},
		"stderr": func(n *yaml.Node) {
			r.each(n, func(n *yaml.Node) {
				if re := r.pattern(n); re != nil {
					m.Stderr = append(m.Stderr, re)
				}
			})
		},
		"host": func(n *yaml.Node) {
			r.each(n, func(n *yaml.Node) { m.Hosts = append(m.Hosts, r.glob(n)) })
		},
		"role": func(n *yaml.Node) {
			r.each(n, func(n *yaml.Node) { m.Roles = append(m.Roles, r.glob(n)) })
		},
	})
}

func (r *reader) budget(n *yaml.Node) *Budget {
	b := &Budget{Restarts: -1}
	r.mapping(n, "budget", fields{
		"restarts": func(n *yaml.Node) { b.Restarts = r.number(n, 0) },
		"window":   func(n *yaml.Node) { b.Window = r.duration(n) },
	})
	if n.Kind == yaml.MappingNode && !has(n, "restarts") {
		r.fail(n, "budget without restarts")
	}
	return b
}

func (r *reader) backoff(n *yaml.Node) *Backoff {
	b := &Backoff{Factor: DefaultFactor, Reset: DefaultReset}
	var limit *yaml.Node
	r.mapping(n, "backoff", fields{
		"initial": func(n *yaml.Node) { b.Initial = r.duration(n) },
		"max":     func(n *yaml.Node) { limit, b.Max = n, r.duration(n) },
		"reset":   func(n *yaml.Node) { b.Reset = r.duration(n) },
		"factor":  func(n *yaml.Node) { b.Factor = r.float(n, 1, 1000) },
		"jitter":  func(n *yaml.Node) { b.Jitter = r.float(n, 0, 1) },
	})
	switch {
	case n.Kind == yaml.MappingNode && !has(n, "initial"):
		r.fail(n, "backoff without initial, the time to wait at first")
	case limit == nil:
		b.Max = max(DefaultMax, b.Initial)
	case b.Max > 0 && b.Max < b.Initial:
		r.fail(limit, "max %s is less than initial %s", short(b.Max), short(b.Initial))
	}
	if max(b.Initial, b.Max) > MaxDelay {
		r.fail(n, "backoff of more than %s", short(MaxDelay))
	}
	return b
}

func (r *reader) noProgress(n *yaml.Node) *NoProgress {
	p := &NoProgress{}
	ok := r.mapping(n, "no_progress", fields{
		"restarts":  func(n *yaml.Node) { p.Restarts = r.number(n, 1) },
		"heartbeat": func(n *yaml.Node) { p.Heartbeat = r.boolean(n) },
		"file": func(n *yaml.Node) {
			r.each(n, func(n *yaml.Node) {
				if text, ok := r.text(n); ok {
					p.Files = append(p.Files, text)
				}
			})
		},
	})
	switch {
	case !ok:
	case !has(n, "restarts"):
		r.fail(n, "no_progress without restarts")
	case !p.Heartbeat && !has(n, "file"):
		r.fail(n, "no_progress looks at nothing: say heartbeat: true, or a file")
	}
	return p
}

// compile makes a pattern whose ^ and $ match at lines.
func compile(text string) (*regexp.Regexp, error) { return regexp.Compile(lines + text) }

// lines is the flag for that.
const lines = "(?m)"
