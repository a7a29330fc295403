package flight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/text"
)

// A Kind is what a Verdict says.
type Kind string

// The kinds.
const (
	None      Kind = "none"      // no operation waits, and nobody is late
	Missing   Kind = "missing"   // ranks have not come to an operation
	Different Kind = "different" // ranks are in an operation of another kind or size
	Order     Kind = "order"     // ranks have entered two groups in another order
	Stuck     Kind = "stuck"     // all have come and it does not end
	Late      Kind = "late"      // nothing hangs; one rank comes last again and again
	Unknown   Kind = "unknown"   // the dumps do not tell
)

// A Verdict is what is wrong, or that nothing is.
type Verdict struct {
	Kind Kind
	// Ranks are those at fault, sorted; none where the dumps do not tell.
	Ranks []int
	Text  string   // one line
	Notes []string // what limits the evidence, a line each
}

// Compare lines up the dumps of a job's ranks and says what is wrong. It changes none of them.
func Compare(dumps []*Dump, cfg Config) Verdict {
	c := &comparison{cfg: cfg}
	v := c.judge(dumps)
	for i, note := range c.notes {
		c.notes[i] = text.Line(note, maxText)
	}
	v.Text, v.Notes = text.Line(v.Text, maxText), c.notes
	slices.Sort(v.Ranks)
	return v
}

const maxText = 500

func (c *comparison) judge(dumps []*Dump) Verdict {
	if problem := c.admit(dumps); problem != "" {
		return Verdict{Kind: Unknown, Text: problem}
	}
	c.alignAll()
	different := c.scanAll()
	c.noteLimits()
	if c.apart != "" {
		return Verdict{Kind: Unknown, Text: c.apart}
	}
	if different.Kind != "" {
		return different
	}
	c.flowWaits()
	c.waits = slices.DeleteFunc(c.waits, func(w *wait) bool { return !c.lasts(w) })
	slices.SortStableFunc(c.waits, func(a, b *wait) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.come[0], b.come[0]), cmp.Compare(a.seq, b.seq))
	})
	switch w, free, circle := c.root(); {
	case w == nil:
		return c.quiet()
	case circle != nil:
		return c.order(w, circle)
	case free != nil:
		return c.missing(w, free)
	case len(w.unknown) > 0 || !w.group.told:
		return c.untold(w)
	default:
		return c.stuck(w)
	}
}

// admit keeps the dumps that can be of the ranks they are said to be of, sorted by rank. It returns why
// they cannot be compared at all.
func (c *comparison) admit(dumps []*Dump) (problem string) {
	c.dumps = slices.SortedStableFunc(slices.Values(dumps), func(a, b *Dump) int { return cmp.Compare(a.Rank, b.Rank) })
	var versions []string
	for i, d := range c.dumps {
		if i > 0 && c.dumps[i-1].Rank == d.Rank {
			return fmt.Sprintf("two dumps are of rank %d: they may be of two jobs, and are not compared", d.Rank)
		}
		if !slices.Contains(versions, d.Version) {
			versions = append(versions, d.Version)
		}
	}
	c.dumps = slices.DeleteFunc(c.dumps, func(d *Dump) bool {
		g := d.alien()
		if g != nil {
			c.notes = append(c.notes, fmt.Sprintf("the dump that is said to be of rank %d is not, and is left out: it takes part in %s of ranks %s",
				d.Rank, g.title(), text.Ranges(slices.Sorted(slices.Values(g.Ranks)), ", ")))
		}
		return g != nil
	})
	if len(c.dumps) == 0 {
		return "there are no dumps to compare"
	}
	if len(versions) > 1 {
		c.notes = append(c.notes, "the ranks run several versions of PyTorch: their dumps have formats "+strings.Join(versions, ", "))
	}
	return c.oneWorld()
}

// oneWorld returns what speaks against one job: default groups that differ.
func (c *comparison) oneWorld() (problem string) {
	var first *Dump
	var world *Group
	for _, d := range c.dumps {
		for j := range d.Entries {
			g := d.Entries[j].Group
			switch {
			case g.Desc != defaultGroup || g.Ranks == nil || g == world:
				continue
			case world == nil:
				first, world = d, g
			case g.key() != world.key():
				return fmt.Sprintf("the dumps are of two jobs, and are not compared: of %s by rank %d's, of %s by rank %d's",
					text.Count(len(world.Ranks), "rank"), first.Rank, text.Count(len(g.Ranks), "rank"), d.Rank)
			}
		}
	}
	return ""
}

// alien returns a group that the dump has an operation of, though its rank is no member.
func (d *Dump) alien() *Group {
	selves := map[*Group]int{}
	for j := range d.Entries {
		e := &d.Entries[j]
		self, ok := selves[e.Group]
		if !ok {
			self = slices.Index(e.Group.Ranks, d.Rank)
			selves[e.Group] = self
		}
		if me := e.Op.self(); e.Group.Ranks != nil && (self < 0 || e.P2P && me >= 0 && me != self) {
			return e.Group
		}
	}
	return nil
}
