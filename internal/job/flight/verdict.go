package flight

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// Config says how Compare judges.
type Config struct {
	World int // the job's number of ranks, 0 if that is not known
	// Patience is how long an operation must have been under way to be a wait, where it is known when
	// the dumps were taken. Default 1s.
	Patience time.Duration
	// Host and Place return where a rank runs, "host1", and what it does by its stack,
	// "train.py:88 in load_batch"; "" or nil if that is not known.
	Host, Place func(rank int) string
	// Silent returns why a rank without a dump gave none, "is stopped", if that makes others wait;
	// "" or nil if not.
	Silent func(rank int) string
}

// A Kind is what a Verdict says.
type Kind string

// The kinds.
const (
	None      Kind = "none"      // no operation waits
	Missing   Kind = "missing"   // ranks have not come to an operation
	Different Kind = "different" // ranks are in an operation of another kind or size
	Order     Kind = "order"     // ranks have entered two operations in another order
	Stuck     Kind = "stuck"     // all have come and it does not end
	Unknown   Kind = "unknown"   // the dumps do not tell
)

// A Verdict is what is wrong, or that nothing is.
type Verdict struct {
	Kind  Kind   `json:"kind"`
	Ranks []int  `json:"ranks,omitempty"` // those at fault, sorted; none where the dumps do not tell
	Text  string `json:"text"`            // one line
}

const (
	maxText    = 500 // characters
	maxClasses = 20
)

// Compare lines up the dumps of a job's ranks, all of one Reader, and says what is wrong.
func Compare(dumps []*Dump, cfg Config) Verdict {
	c := &comparison{cfg: cfg, index: map[int]int{}, titles: map[string]int{}}
	v := c.judge(dumps)
	slices.Sort(v.Ranks)
	v.Text = text.Line(v.Text, maxText)
	return v
}

func (c *comparison) judge(dumps []*Dump) Verdict {
	if problem := c.admit(dumps); problem != "" {
		return Verdict{Kind: Unknown, Text: problem}
	}
	c.align()
	c.tallies = make([]tally, len(c.dumps))
	for _, g := range c.groups {
		c.scan(g)
	}
	switch {
	case c.different.Kind != "":
		return c.different
	case len(c.waits) > 0:
		return c.root()
	}
	return Verdict{Kind: None, Text: "no operation that is recorded waits for a rank. gloo records no sends and " +
		"receives, and NCCL the first between two ranks when both have come"}
}

// admit keeps the dumps that can be of the ranks they are said to be of. It returns why they cannot be
// compared at all.
func (c *comparison) admit(dumps []*Dump) (problem string) {
	var world *Group
	dumps = slices.Clone(dumps)
	slices.SortStableFunc(dumps, func(a, b *Dump) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, d := range dumps {
		if n := len(c.dumps); n > 0 && c.dumps[n-1].Rank == d.Rank {
			return fmt.Sprintf("two dumps are of rank %d: they may be of two jobs, and are not compared", d.Rank)
		}
		selves := map[*Group]int{} // the rank's group ranks
		alien := slices.IndexFunc(d.Entries, func(e Entry) bool {
			self, ok := selves[e.Group]
			if !ok {
				self = slices.Index(e.Group.Ranks, d.Rank)
				selves[e.Group] = self
			}
			return e.Group.Ranks != nil && (self < 0 || e.P2P && e.Op.To >= 0 && self != [2]int{e.Op.From, e.Op.To}[e.Op.side()])
		})
		if alien >= 0 {
			continue // it is not of that rank
		}
		for g := range selves {
			if g.Desc == defaultGroup && g.Ranks != nil {
				if world = cmp.Or(world, g); !slices.Equal(world.Ranks, g.Ranks) {
					return fmt.Sprintf("the dumps are of two jobs, of %d and of %d ranks, and are not compared",
						len(world.Ranks), len(g.Ranks))
				}
			}
		}
		c.dumps = append(c.dumps, d)
	}
	if len(c.dumps) == 0 {
		return "there are no dumps to compare"
	}
	return ""
}

// root tells of the wait that others come from: one for ranks that are in no wait themselves, a circle
// of waits, one of which the dumps do not tell for whom it is, or one to which all have come.
func (c *comparison) root() Verdict {
	if v := c.silent(); v.Kind != "" {
		return v
	}
	slices.SortStableFunc(c.waits, func(a, b *wait) int { return cmp.Compare(a.first, b.first) })
	in := map[int]*wait{} // the first wait that a rank is in
	for _, w := range slices.Backward(c.waits) {
		for _, rank := range w.come {
			in[rank] = w
		}
	}
	var best, next, untold, stuck *wait
	var free []int
	for _, w := range c.waits {
		away := slices.DeleteFunc(slices.Clone(w.missing), func(rank int) bool { return in[rank] != nil })
		switch {
		case len(away) > 0 && (best == nil || len(away) == len(w.missing) && len(free) < len(best.missing)):
			best, free = w, away
		case len(w.missing) > 0:
			next = cmp.Or(next, w)
		case len(w.unknown) > 0 || !w.told && !w.peers:
			untold = cmp.Or(untold, w)
		default:
			stuck = cmp.Or(stuck, w)
		}
	}
	for range c.waits {
		if next != nil && len(next.missing) > 0 {
			next = in[next.missing[0]]
		}
	}
	switch {
	case best != nil:
		return c.missing(best, free)
	case next != nil && len(next.missing) > 0:
		return c.order(next, in[next.missing[0]])
	case untold != nil:
		return c.untold(untold)
	}
	return c.stuck(stuck)
}

// silent tells of ranks that cannot say where they are, if there are any.
func (c *comparison) silent() (v Verdict) {
	why := ""
	for rank := 0; rank < c.cfg.World && c.cfg.Silent != nil; rank++ {
		if _, hasDump := c.index[rank]; hasDump {
			continue
		}
		if reason := c.cfg.Silent(rank); reason != "" && (why == "" || reason == why) {
			why, v.Ranks = reason, append(v.Ranks, rank)
		}
	}
	if why == "" {
		return v
	}
	v.Kind, v.Text = Missing, fmt.Sprintf("%s; %s %s", c.waiting(c.waits[0]), c.named(v.Ranks), why)
	return v
}

// differ reports whether the calls of a row have several labels, and keeps the verdict if it is the first.
func (c *comparison) differ(g *group, r *row, name string, label func(call) string) bool {
	type class struct {
		label string
		calls []call
	}
	var classes []class
	for _, at := range r.calls {
		l := label(at)
		i := slices.IndexFunc(classes, func(k class) bool { return k.label == l })
		if i < 0 && l != "" && len(classes) < maxClasses {
			i, classes = len(classes), append(classes, class{label: l})
		}
		if i >= 0 {
			classes[i].calls = append(classes[i].calls, at)
		}
	}
	if len(classes) < 2 {
		return false
	}
	slices.SortStableFunc(classes, func(a, b class) int { return cmp.Compare(len(b.calls), len(a.calls)) })
	most, odd := classes[0], classes[len(classes)-1]
	v := Verdict{Kind: Different, Ranks: c.ranks(odd.calls)}
	is, with := "is in", odd.label
	if name != "" {
		is, with = "has", name
	}
	others := c.who(c.ranks(most.calls), is, map[string]string{"is in": "are in", "has": "have"}[is])
	if len(most.calls) == len(odd.calls) { // nobody can tell which half is right
		v.Ranks = append(v.Ranks, c.ranks(most.calls)...)
	}
	v.Text = fmt.Sprintf("%s in %s", c.who(v.Ranks[:len(odd.calls)], "is", "are"), c.what(g, with, r.seq))
	if name != "" {
		v.Text += " with " + odd.label
	}
	v.Text += at(c.entry(odd.calls[0])) + fmt.Sprintf(" where %s %s", others, most.label)
	if created := c.created(r.calls[0]); c.different.Kind == "" || created < c.since {
		c.different, c.since = v, created
	}
	return true
}
