package flight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/text"
)

// maxClocks is by how much clocks that are corrected may differ.
const maxClocks = time.Minute

// scanAll looks at each operation of each group, collects the waits, and returns the first operation
// that is not the same on all ranks.
func (c *comparison) scanAll() (different Verdict) {
	c.tallies = make([]tally, len(c.dumps))
	first := int64(0)
	for _, g := range c.groups {
		mixed := c.scan(g)
		w := c.findWait(g)
		if w != nil {
			c.waits = append(c.waits, w)
		}
		v := Verdict{}
		switch {
		case mixed != nil:
			v = c.different(g, mixed, c.classes(mixed, c.name), false)
		case w != nil && c.lasts(w):
			v = c.sizes(w)
			mixed = w.row
		}
		if v.Kind != "" {
			if at := c.entry(mixed.calls[0]).Created; different.Kind == "" || at < first {
				different, first = v, at
			}
		}
		c.noteGaps(g)
	}
	return different
}

// scan counts how far each rank is in a group, and returns the first operation whose kind differs.
func (c *comparison) scan(g *group) (mixed *row) {
	for i := range g.rows {
		r := &g.rows[i]
		ended, entered := int64(0), int64(0)
		first := c.entry(r.calls[0]).Op
		same := true
		for _, at := range r.calls {
			t, e := &c.tallies[at.dump], c.entry(at)
			if !t.any {
				t.any, t.since = true, i
			}
			t.last, t.rows = r.seq, t.rows+1
			ahead := int64(c.dumps[at.dump].Ahead)
			if at.state == Completed {
				t.ended, t.done = true, r.seq
				if e.Completed > 0 && (ended == 0 || e.Completed-ahead < ended) {
					ended = e.Completed - ahead
				}
			}
			entered = max(entered, e.Created-ahead)
			same = same && e.Op == first && at.n == r.calls[0].n
		}
		if c.apart == "" && ended > 0 && entered-ended > int64(maxClocks) && together(first.Name) {
			c.apart = fmt.Sprintf("the dumps are not of one run, or clocks differ: a rank entered %s %d of %s %s after it had ended for another",
				first.Name, r.seq, c.title(g), time.Duration(entered-ended).Round(time.Second))
		}
		if mixed == nil && !same && len(c.classes(r, c.name)) > 1 {
			mixed = r
		}
	}
	c.late.add(c, g)
	return mixed
}

// together reports whether an operation ends for nobody before all have come.
func together(name string) bool {
	return strings.HasPrefix(name, "all_") || strings.HasPrefix(name, "reduce_scatter") || name == "barrier"
}

// A class is ranks whose part in an operation is the same.
type class struct {
	label string
	ranks []int
}

// classes sorts the calls of a row by a label, "" for those of whom it cannot be told. The largest comes first.
func (c *comparison) classes(r *row, label func(call) string) (classes []class) {
	for _, at := range r.calls {
		l := label(at)
		if l == "" {
			continue
		}
		i := slices.IndexFunc(classes, func(k class) bool { return k.label == l })
		if i < 0 {
			if len(classes) == maxClasses {
				continue
			}
			i = len(classes)
			classes = append(classes, class{label: l})
		}
		classes[i].ranks = append(classes[i].ranks, c.rank(at))
	}
	slices.SortStableFunc(classes, func(a, b class) int { return cmp.Compare(len(b.ranks), len(a.ranks)) })
	return classes
}

const maxClasses = 8

// name labels a call with its kind. Of coalesced operations that are not complete yet it says nothing.
func (c *comparison) name(at call) string {
	e := c.entry(at)
	if at.n == 1 {
		return e.Op.Name
	}
	names, n := "", int32(0)
	entries := c.dumps[at.dump].Entries
	for i := int(at.first); n < at.n && i < len(entries); i++ {
		if o := &entries[i]; o.Group == e.Group && o.Seq == e.Seq && !o.P2P {
			if n++; n < at.n && len(names) < maxText {
				names += " " + o.Op.Name
			} else if !strings.Contains(strings.ToLower(o.Op.Name), "coalesced") {
				return ""
			}
		}
	}
	return fmt.Sprintf("%s (%s)", text.Count(int(at.n-1), "coalesced operation"), strings.TrimSpace(names))
}

// size labels a call with what must be the same on all ranks, "" if nothing must.
func (c *comparison) size(at call) string {
	op := c.entry(at).Op
	switch {
	case at.n > 1 || strings.HasPrefix(op.Name, "all_to_all") || strings.HasSuffix(op.Name, "_v") || op.Name == "split":
		return ""
	case op.Name == "scatter" || op.Name == "broadcast" && op.In.Type == "":
		return op.Out.String()
	}
	return op.In.String()
}

// sizes compares the sizes of an operation that does not end.
func (c *comparison) sizes(w *wait) Verdict {
	if classes := c.classes(w.row, c.size); len(classes) > 1 {
		return c.different(w.group, w.row, classes, true)
	}
	op := w.op
	if !strings.HasPrefix(op.Name, "all_to_all") || len(w.row.calls) < len(w.group.members) {
		return Verdict{}
	}
	in, out := int64(0), int64(0)
	for _, at := range w.row.calls {
		in, out = in+c.entry(at).Op.In.Elements, out+c.entry(at).Op.Out.Elements
	}
	if in == out {
		return Verdict{}
	}
	return Verdict{Kind: Different, Text: fmt.Sprintf("the ranks send %d elements in %s, and expect %d: the dumps do not tell whose split is wrong",
		in, c.what(w), out)}
}

// noteGaps tells of operations that a rank's record lacks between others, and clears the tallies.
func (c *comparison) noteGaps(g *group) {
	for _, r := range g.rows {
		for _, at := range r.calls {
			t := c.tallies[at.dump]
			c.tallies[at.dump] = tally{}
			if !t.any {
				continue
			}
			end, _ := slices.BinarySearchFunc(g.rows, t.last, func(r row, seq int64) int { return cmp.Compare(r.seq, seq) })
			if lost := end - t.since + 1 - t.rows; lost > 0 && len(c.notes) < maxNotes {
				c.notes = append(c.notes, fmt.Sprintf("rank %d's record lacks %s of %s between others that it has",
					c.rank(at), text.Count(lost, "collective"), c.title(g)))
			}
		}
	}
}

const maxNotes = 20
