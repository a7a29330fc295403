package flight

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/text"
)

// types are PyTorch's names and sizes of what the recorder names by its C++ names.
// Source: AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS in c10/core/ScalarType.h.
var types = map[string]struct {
	name string
	size int64
}{
	"Float": {"float32", 4}, "Double": {"float64", 8}, "Half": {"float16", 2}, "BFloat16": {"bfloat16", 2}, "Long": {"int64", 8},
	"Int": {"int32", 4}, "Short": {"int16", 2}, "Char": {"int8", 1}, "Byte": {"uint8", 1}, "Bool": {"bool", 1},
	"ComplexFloat": {"complex64", 8}, "ComplexDouble": {"complex128", 16},
	"Float8_e4m3fn": {"float8_e4m3fn", 1}, "Float8_e5m2": {"float8_e5m2", 1},
}

// String writes the size, "25 MiB float32", or the number of elements of a type of unknown size.
func (t Tensors) String() string {
	if known, ok := types[t.Type]; ok && t.Elements < 1<<56 {
		return text.Size(t.Elements*known.size) + " " + known.name
	}
	return strings.TrimSpace(fmt.Sprintf("%d elements %s", t.Elements, text.Line(t.Type, maxName)))
}

// title names a group, with its ranks if others have the same name.
func (c *comparison) title(g *group) string {
	title := g.title()
	for _, other := range c.groups {
		if other.Group.key() != g.Group.key() && other.title() == title && g.told {
			return title + " of ranks " + c.list(g.members)
		}
	}
	return title
}

// what names an operation: "all_reduce 4711 of group dp".
func (c *comparison) what(w *wait) string {
	if w.row == nil {
		return w.op.Name + " in " + c.title(w.group)
	}
	return fmt.Sprintf("%s %d of %s", w.op.Name, w.seq, c.title(w.group))
}

// sized is what with the size.
func (c *comparison) sized(w *wait) string {
	if w.op.In.Type == "" && w.op.Out.Type == "" || w.op.Name == "barrier" {
		return c.what(w)
	}
	size := w.op.In
	if size.Type == "" || w.op.Name == recv {
		size = w.op.Out
	}
	return c.what(w) + " (" + size.String() + ")"
}

func (c *comparison) list(ranks []int) string {
	if s := text.Ranges(ranks, ", "); len(s) <= 60 {
		return s
	}
	return fmt.Sprintf("%s, %d in all", text.Ranges(ranks[:4], ", "), len(ranks))
}

// who names ranks as a sentence's subject, with their verb.
func (c *comparison) who(ranks []int, one, many string) string {
	if len(ranks) != 1 {
		return "ranks " + c.list(ranks) + " " + many
	}
	host := ""
	if c.cfg.Host != nil {
		host = c.cfg.Host(ranks[0])
	}
	if host != "" {
		host = " on " + host
	}
	return fmt.Sprintf("rank %d%s %s", ranks[0], host, one)
}

// how says what a rank does instead, by its stack or its last entry; "" if neither is known.
func (c *comparison) how(rank int) string {
	if c.cfg.Place != nil {
		if place := c.cfg.Place(rank); place != "" {
			return ": " + place
		}
	}
	i, ok := c.index[rank]
	if !ok || len(c.dumps[i].Entries) == 0 {
		return ""
	}
	e := &c.dumps[i].Entries[len(c.dumps[i].Entries)-1]
	last := fmt.Sprintf(": its last is %s %d of %s", e.Op.Name, e.Seq, e.Group.title())
	if e.Place != "" {
		last += ", " + e.Place
	}
	return last
}

func (c *comparison) waiting(w *wait) string {
	if len(w.come) > 2 {
		return text.Count(len(w.come), "rank") + " wait"
	}
	return c.who(w.come, "waits", "wait")
}

func (c *comparison) missing(w *wait, free []int) Verdict {
	line := fmt.Sprintf("%s in %s; %s not come", c.waiting(w), c.sized(w), c.who(free, "has", "have"))
	if how := c.how(free[0]); len(free) == 1 {
		line += how
	} else if how != "" {
		line += fmt.Sprintf("; rank %d%s", free[0], how)
	}
	return Verdict{Kind: Missing, Ranks: free, Text: line}
}

// different tells of an operation whose kind or size is not the same on all ranks.
func (c *comparison) different(g *group, r *row, classes []class, sizes bool) Verdict {
	most, odd := classes[0], classes[len(classes)-1]
	v := Verdict{Kind: Different, Ranks: slices.Clone(odd.ranks)}
	one, many := "is in", "are in"
	if sizes {
		one, many = "has", "have"
	}
	others := c.who(most.ranks, one, many)
	switch {
	case len(most.ranks) == len(odd.ranks): // nobody can tell which half is right
		v.Ranks = append(v.Ranks, most.ranks...)
	case len(classes) == 2 && len(most.ranks) > 2:
		others = fmt.Sprintf("the other %d %s", len(most.ranks), many)
	}
	at := ""
	for _, a := range r.calls {
		if c.rank(a) == odd.ranks[0] && c.entry(a).Place != "" {
			at = " (" + c.entry(a).Place + ")"
		}
	}
	if sizes {
		v.Text = fmt.Sprintf("%s in %s %d of %s with %s%s where %s %s", c.who(odd.ranks, "is", "are"), c.entry(r.calls[0]).Op.Name,
			r.seq, c.title(g), odd.label, at, others, most.label)
	} else {
		v.Text = fmt.Sprintf("%s in %s %d of %s%s where %s %s", c.who(odd.ranks, "is", "are"), odd.label, r.seq, c.title(g), at,
			others, most.label)
	}
	return v
}

// order tells of two waits each of which is for a rank in the other.
func (c *comparison) order(w, other *wait) Verdict {
	if n := cmp.Compare(len(w.come), len(other.come)); n > 0 || n == 0 && w.come[0] > other.come[0] {
		w, other = other, w
	}
	v := Verdict{Kind: Order, Ranks: slices.Clone(w.come)}
	if len(w.come) == len(other.come) {
		v.Ranks = append(v.Ranks, other.come...)
	}
	at := ""
	if place := w.entries[w.come[0]].Place; place != "" {
		at = " (" + place + ")"
	}
	v.Text = fmt.Sprintf("%s in %s%s where %s in %s: they enter these in another order, and each waits for the other",
		c.who(w.come, "is", "are"), c.what(w), at, c.who(other.come, "is", "are"), c.what(other))
	return v
}

// untold tells of a wait of which the dumps do not tell for whom it is.
func (c *comparison) untold(w *wait) Verdict {
	v := Verdict{Kind: Unknown}
	switch {
	case len(w.unknown) == 0:
		all := slices.Sorted(slices.Values(slices.Concat(w.come, w.done)))
		v.Text = fmt.Sprintf("%s in %s and it does not end; the dumps do not tell whether more ranks are in the group",
			c.who(all, "is", "are all"), c.sized(w))
	case w.unknown[0] < 0:
		v.Text = fmt.Sprintf("%s in %s, from any rank: the dumps do not tell who should send", c.waiting(w), c.sized(w))
	default:
		why := "has lost what would tell"
		if _, ok := c.index[w.unknown[0]]; !ok {
			why = "is not there"
		}
		v.Text = fmt.Sprintf("%s in %s; whether %s come cannot be told: the dump of rank %d %s",
			c.waiting(w), c.sized(w), c.who(w.unknown, "has", "have"), w.unknown[0], why)
	}
	return v
}

func (c *comparison) stuck(w *wait) Verdict {
	all := slices.Sorted(slices.Values(slices.Concat(w.come, w.done)))
	line := fmt.Sprintf("%s in %s and it does not end", c.who(all, "is", "are all"), c.sized(w))
	var begun, not []int
	for _, rank := range w.come {
		if w.entries[rank].State == Started {
			begun = append(begun, rank)
		} else {
			not = append(not, rank)
		}
	}
	v := Verdict{Kind: Stuck}
	switch {
	case len(w.done) > 0:
		line += ": it has ended for " + strings.TrimSpace(c.who(w.done, "", ""))
	case len(begun) > 0 && len(not) > 0:
		v.Ranks = not
		line += fmt.Sprintf(": it has begun for %s and not for %s, where the GPU still has other work",
			strings.TrimSpace(c.who(begun, "", "")), strings.TrimSpace(c.who(not, "", "")))
	default:
		line += ": look at the network and the GPUs"
	}
	v.Text = line
	return v
}

// quiet tells that nothing hangs.
func (c *comparison) quiet() Verdict {
	if v := c.late.verdict(c); v.Kind != "" {
		return v
	}
	if len(c.dumps) == 0 {
		return Verdict{Kind: None}
	}
	line := "no operation that is recorded waits for a rank"
	last := c.dumps[0]
	for _, d := range c.dumps {
		if n := len(d.Entries); n > 0 && (len(last.Entries) == 0 || d.Entries[n-1].Created > last.Entries[len(last.Entries)-1].Created) {
			last = d
		}
	}
	if n := len(last.Entries); n > 0 {
		e := &last.Entries[n-1]
		line += fmt.Sprintf("; the last is %s %d of %s", e.Op.Name, e.Seq, e.Group.title())
	}
	return Verdict{Kind: None, Text: line + ". gloo records no sends and receives, and NCCL the first between two ranks when both have come"}
}

// noteLimits tells what the dumps do not have.
func (c *comparison) noteLimits() {
	absent := map[int]bool{}
	var lost []int
	var untold []string
	for _, g := range c.groups {
		if title := c.title(g); !g.told && !slices.Contains(untold, title) {
			untold = append(untold, title)
		}
		for _, rank := range g.members {
			if _, ok := c.index[rank]; !ok {
				absent[rank] = true
			}
		}
	}
	for _, d := range c.dumps {
		if d.Lost {
			lost = append(lost, d.Rank)
		}
	}
	note := func(ranks []int, format string) {
		if len(ranks) > 0 {
			c.notes = append(c.notes, fmt.Sprintf(format, text.Count(len(ranks), "rank"), c.list(ranks)))
		}
	}
	note(slices.Sorted(maps.Keys(absent)), "there is no dump of %s: %s")
	note(lost, "the records of %s have lost their beginning, or have only what has not ended: %s")
	if len(untold) > 0 {
		c.notes = append(c.notes, "the dumps do not tell who is in "+strings.Join(untold, ", ")+
			": who has never been in an operation of a group is not missed in it")
	}
}
