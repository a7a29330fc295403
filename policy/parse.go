package policy

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/yamlfile"
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
)

// An Error is one thing that is wrong with a file: File, Line, Column and Message. Line and
// Column are from 1, or 0 where it is about the whole file. Parse and Load join all of
// them, so that an editor can show each in its place.
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

// Parse reads a policy. The error joins everything that is wrong, each an *Error, in
// the order of the text; file is its name in them.
func Parse(text []byte, file string) (*Policy, error) {
	r := &reader{yamlfile.Reader{File: file}}
	p := &Policy{File: file, MaxRestarts: -1, Default: Rule{Name: defaultName, Action: Retry}}
	if root := r.Root(text); root != nil {
		r.policy(root, p)
	} else if r.Err() == nil {
		r.Fail(&yaml.Node{}, "it is empty; write {} for an empty policy")
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

type reader struct{ yamlfile.Reader }

// policy reads the whole.
func (r *reader) policy(n *yaml.Node, p *Policy) {
	r.Mapping(n, "a policy", yamlfile.Keys{
		"max_restarts": one(r, &p.MaxRestarts, number(0)),
		"rules": func(n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				r.Fail(n, "rules: want a list, got %s", yamlfile.Shown(n))
			}
			for i, item := range n.Content {
				if i == maxRules {
					r.Fail(item, "more than %d rules", maxRules)
					return
				}
				rule := Rule{Name: fmt.Sprint("#", i+1), Line: item.Line}
				r.rule(item, "a rule", &rule, yamlfile.Keys{
					"name":  one(r, &rule.Name, name),
					"match": func(n *yaml.Node) { r.match(n, &rule.Match) },
				})
				r.unique(item, p, &rule)
				p.Rules = append(p.Rules, rule)
			}
		},
		"default": func(n *yaml.Node) {
			p.Default.Line = n.Line
			r.rule(n, "the default", &p.Default, yamlfile.Keys{})
		},
		"no_progress": func(n *yaml.Node) { p.NoProgress = r.noProgress(n) },
	})
}

// unique reports a name that two rules have.
func (r *reader) unique(n *yaml.Node, p *Policy, rule *Rule) {
	if rule.Name == defaultName {
		r.Fail(n, "a rule cannot have the name %s", defaultName)
	}
	if i := slices.IndexFunc(p.Rules, func(other Rule) bool { return other.Name == rule.Name }); i >= 0 {
		r.Fail(n, "a second rule with the name %s; the first is in line %d", rule.Name, p.Rules[i].Line)
	}
}

// rule reads a rule, or the default, which lacks some of the keys.
func (r *reader) rule(n *yaml.Node, what string, rule *Rule, all yamlfile.Keys) {
	all["action"] = one(r, &rule.Action, action)
	all["budget"] = func(n *yaml.Node) { rule.Budget = r.budget(n) }
	all["backoff"] = func(n *yaml.Node) { rule.Backoff = r.backoff(n) }
	all["all"] = one(r, &rule.All, boolean)
	values := r.Mapping(n, what, all)
	switch {
	case values == nil:
	case rule.Action == "":
		if values["action"] == nil {
			r.Fail(n, "%s without an action: want %s", what, list(actions))
		}
	case rule.Action != Retry:
		for _, key := range []string{"budget", "backoff", "all"} {
			if at := values[key]; at != nil {
				r.Fail(at, "%s is for action retry; this one is %s", key, rule.Action)
			}
		}
	}
	for _, c := range rule.Causes {
		switch {
		case c == failure.CauseHostLost && rule.Action == Drain:
			r.Fail(n, "a rule for cause %s cannot drain: the host has gone already", c)
		case c == failure.CauseUninterruptible && rule.Action == Retry:
			r.Fail(n, "a rule for cause %s cannot retry: the worker may still hold its devices; stop, or drain the host", c)
		}
	}
}

// match reads the conditions of a rule.
func (r *reader) match(n *yaml.Node, m *Match) {
	r.Mapping(n, "match", yamlfile.Keys{
		"exit":   many(r, &m.Exits, exits),
		"signal": many(r, &m.Signals, signal),
		"cause":  many(r, &m.Causes, cause),
		"stderr": many(r, &m.Stderr, pattern),
		"host":   many(r, &m.Hosts, glob),
		"role":   many(r, &m.Roles, glob),
	})
}

func (r *reader) budget(n *yaml.Node) *Budget {
	b := &Budget{}
	values := r.Mapping(n, "budget", yamlfile.Keys{
		"restarts": one(r, &b.Restarts, number(0)),
		"window":   one(r, &b.Window, duration),
	})
	if values != nil && values["restarts"] == nil {
		r.Fail(n, "budget without restarts")
	}
	return b
}

func (r *reader) backoff(n *yaml.Node) *Backoff {
	b := &Backoff{Factor: defaultFactor, Reset: defaultReset}
	values := r.Mapping(n, "backoff", yamlfile.Keys{
		"initial": one(r, &b.Initial, duration),
		"max":     one(r, &b.Max, duration),
		"reset":   one(r, &b.Reset, duration),
		"factor":  one(r, &b.Factor, float(1, 1000)),
		"jitter":  one(r, &b.Jitter, float(0, 1)),
	})
	switch limit := values["max"]; {
	case values != nil && values["initial"] == nil:
		r.Fail(n, "backoff without initial, the time to wait at first")
	case limit == nil:
		b.Max = max(defaultMax, b.Initial)
	case b.Max > 0 && b.Max < b.Initial:
		r.Fail(limit, "max %s is less than initial %s", short(b.Max), short(b.Initial))
	}
	if max(b.Initial, b.Max) > maxDelay {
		r.Fail(n, "backoff of more than %s", short(maxDelay))
	}
	return b
}

func (r *reader) noProgress(n *yaml.Node) *NoProgress {
	p := &NoProgress{}
	values := r.Mapping(n, "no_progress", yamlfile.Keys{
		"restarts":  one(r, &p.Restarts, number(1)),
		"heartbeat": one(r, &p.Heartbeat, boolean),
		"file":      many(r, &p.Files, line),
	})
	switch {
	case values == nil:
	case values["restarts"] == nil:
		r.Fail(n, "no_progress without restarts")
	case !p.Heartbeat && values["file"] == nil:
		r.Fail(n, "no_progress looks at nothing: say heartbeat: true, or a file")
	}
	return p
}

// one reads a value into to, which stays as it is where the value is wrong.
func one[T any](r *reader, to *T, parse func(*yaml.Node) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if v, err := parse(n); err != nil {
			r.Fail(n, "%v", err)
		} else {
			*to = v
		}
	}
}

// many reads the members of a list, or the one value that stands for such a list.
func many[T any](r *reader, to *[]T, parse func(*yaml.Node) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		items := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode {
			items = n.Content
		}
		switch {
		case len(items) == 0:
			r.Fail(n, "an empty list, which nothing is in")
		case len(items) > maxList:
			r.Fail(n, "a list of more than %d", maxList)
		default:
			*to = make([]T, len(items))
			for i, item := range items {
				one(r, &(*to)[i], parse)(item)
			}
		}
	}
}
