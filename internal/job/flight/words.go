package flight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// title names a group; a comparison's adds the ranks if others have the same name.
func (g *Group) title() string {
	if g.Desc == defaultGroup {
		return "the default group"
	}
	return "group " + cmp.Or(strings.TrimPrefix(g.Desc, "undefined"), g.Name)
}

func (c *comparison) title(g *group) string {
	title := g.title()
	if g.told && c.titles[title] > 1 {
		title += " of ranks " + list(g.members)
	}
	return title
}

// what names an operation: "all_reduce 4711 of group dp".
func (c *comparison) what(g *group, name string, seq int64) string {
	if g.peers {
		return name + " in " + c.title(g)
	}
	return fmt.Sprintf("%s %d of %s", name, seq, c.title(g))
}

// sized names a wait's operation, with its size.
func (c *comparison) sized(w *wait) string {
	what := c.what(w.group, w.op.Name, w.row.seq)
	if size := w.op.size(); size != "" && w.op.Name != "barrier" {
		what += " (" + size + ")"
	}
	return what
}

// size is what the sender and the receiver, or all ranks of most collectives, have the same.
func (o *Op) size() string {
	if o.Name == "recv" || o.Name == "scatter" || o.In == "" {
		return o.Out
	}
	return o.In
}

// same is its size where that must be the same on all ranks, "" where it need not.
func (o *Op) same() string {
	if strings.HasPrefix(o.Name, "all_to_all") || strings.HasSuffix(o.Name, "_v") || o.Name == "split" {
		return ""
	}
	return o.size()
}

func list(ranks []int) string {
	s := text.Ranges(ranks, ", ")
	if len(s) <= 60 {
		return s
	}
	return fmt.Sprintf("%s and others, %d in all", text.Ranges(ranks[:4], ", "), len(ranks))
}

func (c *comparison) ranks(calls []call) (ranks []int) {
	for _, at := range calls {
		ranks = append(ranks, c.rank(at))
	}
	return ranks
}

// named names ranks, and who also says what they do.
func (c *comparison) named(ranks []int) string {
	if len(ranks) != 1 {
		return "ranks " + list(ranks)
	}
	name := fmt.Sprint("rank ", ranks[0])
	if c.cfg.Host != nil && c.cfg.Host(ranks[0]) != "" {
		name += " on " + c.cfg.Host(ranks[0])
	}
	return name
}

func (c *comparison) who(ranks []int, one, many string) string {
	if len(ranks) == 1 {
		many = one
	}
	return c.named(ranks) + " " + many
}

func (c *comparison) waiting(w *wait) string {
	if len(w.come) > 2 {
		return fmt.Sprintf("%d ranks wait in %s", len(w.come), c.sized(w))
	}
	return c.who(w.come, "waits", "wait") + " in " + c.sized(w)
}

// at is an entry's place in brackets, if it is known.
func at(e *Entry) string {
	if e.Place == "" {
		return ""
	}
	return " (" + e.Place + ")"
}

// missing tells of a wait for ranks that have not come, and what the first of them does instead.
func (c *comparison) missing(w *wait, free []int) Verdict {
	does := ""
	if c.cfg.Place != nil {
		does = c.cfg.Place(free[0])
	}
	if entries := c.dumps[c.index[free[0]]].Entries; does == "" && len(entries) > 0 {
		e := &entries[len(entries)-1]
		does = fmt.Sprintf("its last is %s %d of %s%s", e.Op.Name, e.Seq, e.Group.title(), at(e))
	}
	line := fmt.Sprintf("%s; %s not come", c.waiting(w), c.who(free, "has", "have"))
	if len(free) > 1 && does != "" {
		line += fmt.Sprintf("; rank %d", free[0])
	}
	return Verdict{Kind: Missing, Ranks: free, Text: strings.TrimSuffix(line+": "+does, ": ")}
}

// order tells of two waits each of which is for a rank in the other, or is in a circle of such.
func (c *comparison) order(w, other *wait) Verdict {
	if n := cmp.Compare(len(w.come), len(other.come)); n > 0 || n == 0 && w.come[0] > other.come[0] {
		w, other = other, w
	}
	v := Verdict{Kind: Order, Ranks: slices.Clone(w.come)}
	if len(w.come) == len(other.come) { // nobody can tell whose order is right
		v.Ranks = append(v.Ranks, other.come...)
	}
	v.Text = fmt.Sprintf("%s in %s%s where %s in %s: they enter these in another order, and each waits for the other",
		c.who(w.come, "is", "are"), c.what(w.group, w.op.Name, w.row.seq), w.at, c.who(other.come, "is", "are"),
		c.what(other.group, other.op.Name, other.row.seq))
	return v
}

// untold tells of a wait for a rank that the dumps do not tell.
func (c *comparison) untold(w *wait) Verdict {
	line := "the dumps do not tell whether more ranks are in the group"
	switch {
	case len(w.unknown) > 0 && w.unknown[0] < 0:
		line = "from any rank: the dumps do not tell who should send"
	case len(w.unknown) > 0:
		line = fmt.Sprintf("whether %s come cannot be told without its dump", c.who(w.unknown, "has", "have"))
		if _, ok := c.index[w.unknown[0]]; ok {
			line = strings.TrimSuffix(line, "without its dump") + "from its record"
		}
	}
	return Verdict{Kind: Unknown, Text: c.waiting(w) + "; " + line}
}

// stuck tells of a wait to which all have come.
func (c *comparison) stuck(w *wait) Verdict {
	v := Verdict{Kind: Stuck}
	why := "look at the network and the GPUs"
	var begun, not []int
	for _, at := range w.row.calls {
		if at.state == Started {
			begun = append(begun, c.rank(at))
		} else {
			not = append(not, c.rank(at))
		}
	}
	if len(w.done) > 0 {
		why = "it has ended for " + c.named(w.done)
	} else if len(begun) > 0 && len(not) > 0 {
		v.Ranks = not
		why = fmt.Sprintf("it has begun for %s and not for %s, where the GPU still has other work",
			c.named(begun), c.named(not))
	}
	all := slices.Sorted(slices.Values(slices.Concat(w.come, w.done)))
	v.Text = fmt.Sprintf("%s in %s and it does not end: %s", c.who(all, "is", "are all"), c.sized(w), why)
	return v
}
