package failure

import (
	_ "embed"
	"strings"
)

// table has the shapes: how lines look that tell something about a failure. It says what each role is.
//
//go:embed shapes.txt
var table string

// A shape is some spellings of a line.
type shape struct {
	role role
	name string
	says string // depends on the role
}

// A role is what a shape tells.
type role string

const (
	begins, goesOn, aside, within, library, between role = "begins", "goes on", "aside", "within", "library", "between"
	other, network, lost, above, orphaned, vague    role = "other", "network", "lost", "above", "orphaned", "vague"
	leaving, crash, reason, logged, open, detail    role = "leaving", "crash", "reason", "logged", "open", "detail"
	asserted, raised, farewell, work                role = "asserted", "raised", "farewell", "work"
	advice, meaning, ended                          role = "advice", "signal", "ended"
)

// A pattern is one spelling.
type pattern struct {
	*shape
	parts []string // around each *
	least int      // bytes of a line
}

// patterns are all of a role.
var patterns = func() map[role][]*pattern {
	all, r, s := map[role][]*pattern{}, role(""), (*shape)(nil)
	for line := range strings.SplitSeq(table, "\n") {
		switch spelling, ok := strings.CutPrefix(line, "\t"); {
		case line == "", line[0] == '#':
		case line[0] == '[':
			r = role(strings.Trim(line, "[]"))
		case ok:
			parts := strings.Split(spelling, "*")
			all[r] = append(all[r], &pattern{s, parts, len(strings.Join(parts, ""))})
		default:
			s = &shape{role: r}
			s.name, s.says, _ = strings.Cut(line, ": ")
		}
	}
	return all
}()

// find returns the first shape of a role that a line has; nil without one. stars, if it is not nil, gets what
// stood for each *.
func find(r role, line string, stars ...*string) *shape {
	for _, p := range patterns[r] {
		if len(line) >= p.least && p.match(line, stars) {
			return p.shape
		}
	}
	return nil
}

// is reports whether a line has a shape of a role.
func is(r role, line string) bool { return find(r, line) != nil }

func (p *pattern) match(s string, stars []*string) bool {
	s, ok := strings.CutPrefix(s, p.parts[0])
	for i, part := range p.parts[1:] {
		at := len(s) - len(part)
		if i < len(p.parts)-2 {
			at = strings.Index(s, part)
		} else {
			ok = ok && strings.HasSuffix(s, part) // it is at the end
		}
		if !ok || at < 0 {
			return false
		}
		if i < len(stars) {
			*stars[i] = s[:at]
		}
		s = s[at+len(part):]
	}
	return ok && s == ""
}
