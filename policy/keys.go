package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/text"
)

// defaultName is the name of Policy.Default.
const defaultName = "default"

// keys says what to do with the value of each key that a mapping may have.
type keys map[string]func(*yaml.Node)

// policy reads the whole.
func (r *reader) policy(n *yaml.Node, p *Policy) {
	r.mapping(n, "a policy", keys{
		"max_restarts": one(r, &p.MaxRestarts, number(0)),
		"rules": func(n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				r.fail(n, "rules: want a list, got %s", shown(n))
			}
			for i, item := range n.Content {
				if i == maxRules {
					r.fail(item, "more than %d rules", maxRules)
					return
				}
				rule := Rule{Name: fmt.Sprint("#", i+1), Line: item.Line}
				r.rule(item, "a rule", &rule, keys{
					"name":  one(r, &rule.Name, name),
					"match": func(n *yaml.Node) { r.match(n, &rule.Match) },
				})
				r.unique(item, p, &rule)
				p.Rules = append(p.Rules, rule)
			}
		},
		"default": func(n *yaml.Node) {
			p.Default.Line = n.Line
			r.rule(n, "the default", &p.Default, keys{})
		},
		"no_progress": func(n *yaml.Node) { p.NoProgress = r.noProgress(n) },
	})
}

// unique reports a name that two rules have.
func (r *reader) unique(n *yaml.Node, p *Policy, rule *Rule) {
	if rule.Name == defaultName {
		r.fail(n, "a rule cannot have the name %s", defaultName)
	}
	if i := slices.IndexFunc(p.Rules, func(other Rule) bool { return other.Name == rule.Name }); i >= 0 {
		r.fail(n, "a second rule with the name %s; the first is in line %d", rule.Name, p.Rules[i].Line)
	}
}

// rule reads a rule, or the default, which lacks some of the keys.
func (r *reader) rule(n *yaml.Node, what string, rule *Rule, all keys) {
	all["action"] = one(r, &rule.Action, action)
	all["budget"] = func(n *yaml.Node) { rule.Budget = r.budget(n) }
	all["backoff"] = func(n *yaml.Node) { rule.Backoff = r.backoff(n) }
	values := r.mapping(n, what, all)
	switch {
	case values == nil:
	case rule.Action == "":
		if values["action"] == nil {
			r.fail(n, "%s without an action: want %s", what, list(actions))
		}
	case rule.Action != Retry:
		for _, key := range []string{"budget", "backoff"} {
			if at := values[key]; at != nil {
				r.fail(at, "%s is for action retry; this one is %s", key, rule.Action)
			}
		}
	}
	for _, c := range rule.Causes {
		switch {
		case c == failure.CauseHostLost && rule.Action == Drain:
			r.fail(n, "a rule for cause %s cannot drain: the host has gone already", c)
		case c == failure.CauseUninterruptible && rule.Action == Retry:
			r.fail(n, "a rule for cause %s cannot retry: the worker may still hold its devices; stop, or drain the host", c)
		}
	}
}

// match reads the conditions of a rule.
func (r *reader) match(n *yaml.Node, m *Match) {
	r.mapping(n, "match", keys{
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
	values := r.mapping(n, "budget", keys{
		"restarts": one(r, &b.Restarts, number(0)),
		"window":   one(r, &b.Window, duration),
	})
	if values != nil && values["restarts"] == nil {
		r.fail(n, "budget without restarts")
	}
	return b
}

func (r *reader) backoff(n *yaml.Node) *Backoff {
	b := &Backoff{Factor: defaultFactor, Reset: defaultReset}
	values := r.mapping(n, "backoff", keys{
		"initial": one(r, &b.Initial, duration),
		"max":     one(r, &b.Max, duration),
		"reset":   one(r, &b.Reset, duration),
		"factor":  one(r, &b.Factor, float(1, 1000)),
		"jitter":  one(r, &b.Jitter, float(0, 1)),
	})
	switch limit := values["max"]; {
	case values != nil && values["initial"] == nil:
		r.fail(n, "backoff without initial, the time to wait at first")
	case limit == nil:
		b.Max = max(defaultMax, b.Initial)
	case b.Max > 0 && b.Max < b.Initial:
		r.fail(limit, "max %s is less than initial %s", short(b.Max), short(b.Initial))
	}
	if max(b.Initial, b.Max) > maxDelay {
		r.fail(n, "backoff of more than %s", short(maxDelay))
	}
	return b
}

func (r *reader) noProgress(n *yaml.Node) *NoProgress {
	p := &NoProgress{}
	values := r.mapping(n, "no_progress", keys{
		"restarts":  one(r, &p.Restarts, number(1)),
		"heartbeat": one(r, &p.Heartbeat, boolean),
		"file":      many(r, &p.Files, line),
	})
	switch {
	case values == nil:
	case values["restarts"] == nil:
		r.fail(n, "no_progress without restarts")
	case !p.Heartbeat && values["file"] == nil:
		r.fail(n, "no_progress looks at nothing: say heartbeat: true, or a file")
	}
	return p
}

// mapping reads a mapping, and returns its values; nil if n is something else.
func (r *reader) mapping(n *yaml.Node, what string, known keys) (values map[string]*yaml.Node) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s: want a mapping of keys to values, got %s", what, shown(n))
		return nil
	}
	values = map[string]*yaml.Node{}
	lines := map[string]int{}
	for pair := range slices.Chunk(n.Content, 2) {
		key, value := pair[0], pair[1]
		read := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			r.fail(key, "%s: a key is %s", what, shown(key))
		case read == nil:
			all := slices.Sorted(maps.Keys(known))
			hint := suggest(key.Value, all)
			if hint == "" {
				hint = "; there are " + strings.Join(all, ", ")
			}
			r.fail(key, "%s has no key %s%s", what, quote(key.Value), hint)
		case values[key.Value] != nil:
			r.fail(key, "%s has %s twice; the first is in line %d", what, key.Value, lines[key.Value])
		case value.ShortTag() == "!!null":
			r.fail(key, "%s has no value", key.Value)
		default:
			read(value)
		}
		values[key.Value], lines[key.Value] = value, key.Line
	}
	return values
}

// one reads a value into to, which stays as it is where the value is wrong.
func one[T any](r *reader, to *T, parse func(*yaml.Node) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if v, err := parse(n); err != nil {
			r.fail(n, "%v", err)
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
			r.fail(n, "an empty list, which nothing is in")
		case len(items) > maxList:
			r.fail(n, "a list of more than %d", maxList)
		default:
			*to = make([]T, len(items))
			for i, item := range items {
				one(r, &(*to)[i], parse)(item)
			}
		}
	}
}

// suggest is what somebody may have meant: "; did you mean rules?".
func suggest(typed string, words []string) string {
	if best := text.Nearest(typed, words...); best != "" {
		return "; did you mean " + best + "?"
	}
	return ""
}
