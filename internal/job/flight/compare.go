package flight

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

const defaultGroup = "default_pg"

// A comparison is dumps that are lined up.
type comparison struct {
	cfg     Config
	dumps   []*Dump     // of different ranks, by rank
	index   map[int]int // of a rank's dump
	groups  []*group
	titles  map[string]int // how many have that name
	waits   []*wait
	tallies []tally // of one group, by dump

	different Verdict // the first operation that is not the same on all ranks, and when it was entered
	since     int64
}

// A group is a process group as the dumps together have it, or what one of its ranks sends to another.
type group struct {
	*Group
	told, peers    bool  // who the members are is told; it is two peers
	order, members []int // the members by group rank, and sorted; those seen in it, if they are not told
	rows           []row // by number
	at             map[int64]int
}

// A row is one operation, and a call a rank's part of it: one entry, or several that are coalesced.
type (
	row struct {
		seq   int64
		calls []call // by dump
	}
	call struct {
		dump, first, last, n int32
		state                State
	}
)

// A tally is how far a rank is in a group: in n rows, the first and last by index; its entries before
// done have ended.
type tally struct {
	n, first, last int
	done           int32
}

// A wait is an operation that has not ended. come are the ranks that are in it, done those for whom it
// has ended, missing those who have not come, and of the unknown the dumps do not tell.
type wait struct {
	*group
	row                          *row
	op                           *Op    // of the first who has come,
	at                           string // and where
	come, done, missing, unknown []int
	first, last                  int64 // when one came
}

func (c *comparison) entry(at call) *Entry { return &c.dumps[at.dump].Entries[at.first] }

func (c *comparison) rank(at call) int { return c.dumps[at.dump].Rank }

func (c *comparison) created(at call) int64 {
	return c.entry(at).Created - int64(c.dumps[at.dump].Ahead)
}

// A flow is what one rank of a group sends to another, by group ranks.
type flow struct {
	*group
	from, to int
}

// align sorts the entries of all dumps by group and operation.
func (c *comparison) align() {
	groups := map[*Group]*group{}
	flows, order := map[flow]*[2][]call{}, []flow(nil) // what is sent, and what is received
	for i, d := range c.dumps {
		c.index[d.Rank] = i
		type batch struct {
			*Group
			seq int64
		}
		ended := map[batch]bool{} // of coalesced sends and receives, only a last entry has a state
		for j := range d.Entries {
			if e := &d.Entries[j]; e.P2P && e.State == Completed {
				ended[batch{e.Group, e.Seq}] = true
			}
		}
		for j := range d.Entries {
			e := &d.Entries[j]
			g := groups[e.Group]
			if g == nil {
				g = &group{Group: e.Group, at: map[int64]int{}}
				groups[e.Group], c.groups = g, append(c.groups, g)
			}
			at := call{int32(i), int32(j), int32(j), 1, e.State}
			if !e.P2P {
				g.add(e.Seq, at)
			} else if key := (flow{g, e.Op.From, e.Op.To}); key.to >= 0 {
				if ended[batch{e.Group, e.Seq}] {
					at.state = Completed
				}
				if flows[key] == nil {
					flows[key], order = &[2][]call{}, append(order, key)
				}
				side := &flows[key][e.Op.side()]
				*side = append(*side, at)
			}
		}
	}
	for _, g := range c.groups {
		c.findMembers(g)
		c.titles[g.title()]++
	}
	for _, key := range order {
		if n := len(key.order); key.told && key.from < n && key.to < n && key.from != key.to {
			c.alignFlow(key, flows[key], flows[flow{key.group, -1, key.to}] != nil)
		}
	}
}

// alignFlow makes a group of the two sides of a flow. If a part may have been recorded elsewhere or not
// at all, the first that has not ended on one side is taken for that on the other.
func (c *comparison) alignFlow(key flow, sides *[2][]call, fromAny bool) {
	g := &group{Group: key.Group, peers: true, order: []int{-1, key.order[key.to]}, told: !fromAny, at: map[int64]int{}}
	if key.from >= 0 {
		g.order[0] = key.order[key.from]
	}
	g.members = slices.Sorted(slices.Values(g.order))
	for _, rank := range g.order {
		i, ok := c.index[rank]
		g.told = g.told && ok && !c.dumps[i].Lost
	}
	for _, calls := range sides {
		done := 0
		for k := len(calls); k > 0 && done == 0 && !g.told; k-- {
			if calls[k-1].state == Completed {
				done = k
			}
		}
		for k, at := range calls {
			g.add(int64(k-done), at)
		}
	}
	for _, r := range g.rows {
		slices.SortFunc(r.calls, func(a, b call) int { return cmp.Compare(a.dump, b.dump) })
	}
	c.groups = append(c.groups, g)
}

func (g *group) add(seq int64, at call) {
	i, ok := g.at[seq]
	if !ok {
		i = len(g.rows)
		g.at[seq], g.rows = i, append(g.rows, row{seq: seq})
	}
	calls := g.rows[i].calls
	if n := len(calls) - 1; n >= 0 && calls[n].dump == at.dump {
		calls[n].n++
		calls[n].last = at.last
		calls[n].state = max(calls[n].state, at.state) // the last of coalesced ones alone has a state
		return
	}
	g.rows[i].calls = append(calls, at)
}

// findMembers finds a group's members where the dumps do not tell. The default group has all ranks.
func (c *comparison) findMembers(g *group) {
	g.told, g.order = g.Ranks != nil, g.Ranks
	if !g.told {
		seen := map[int]bool{}
		for _, r := range g.rows {
			for _, at := range r.calls {
				seen[c.rank(at)] = true
			}
		}
		g.told = c.cfg.World > 0 && (g.Desc == defaultGroup || len(seen) >= c.cfg.World)
		for rank := 0; g.told && rank < c.cfg.World; rank++ {
			seen[rank] = true
		}
		g.order = slices.Sorted(maps.Keys(seen)) // as new_group orders them
	}
	g.members = slices.Sorted(slices.Values(g.order))
}

// scan counts how far each rank is in a group, and finds its wait and what differs.
func (c *comparison) scan(g *group) {
	slices.SortFunc(g.rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	differs := false
	for i := range g.rows {
		r := &g.rows[i]
		first, same := c.entry(r.calls[0]).Op, true
		for _, at := range r.calls {
			t, e := &c.tallies[at.dump], c.entry(at)
			if t.n++; t.n == 1 {
				t.first = i
			}
			if t.last = i; at.state == Completed {
				t.done = max(t.done, at.first+1)
			}
			same = same && e.Op == first && at.n == r.calls[0].n
		}
		if !same && !differs && !g.peers {
			differs = c.differ(g, r, "", c.name)
		}
	}
	if w := c.findWait(g); w != nil && c.lasts(w) {
		if c.waits = append(c.waits, w); !differs {
			c.differ(g, w.row, w.op.Name, c.size)
		}
	}
	clear(c.tallies)
}

// name labels a call with its kind, "" if it is not complete yet; size labels it with what must be the
// same on all ranks, "" if nothing must.
func (c *comparison) name(at call) string {
	name, last := c.entry(at).Op.Name, c.dumps[at.dump].Entries[at.last].Op.Name
	switch {
	case at.n == 1:
		return name
	case !strings.Contains(strings.ToLower(last), "coalesced"):
		return ""
	}
	return text.Count(int(at.n-1), "coalesced operation") + " such as " + name
}

func (c *comparison) size(at call) string {
	if at.n > 1 {
		return ""
	}
	return c.entry(at).Op.same()
}

// stands reports whether an operation has not ended for a rank. Those of a group end in turn.
func (c *comparison) stands(at call) bool {
	return at.state != Completed && at.first >= c.tallies[at.dump].done
}

// findWait returns the first operation of a group that has not ended, nil if all have.
func (c *comparison) findWait(g *group) *wait {
	i := slices.IndexFunc(g.rows, func(r row) bool { return slices.ContainsFunc(r.calls, c.stands) })
	if i < 0 {
		return nil
	}
	w := &wait{group: g, row: &g.rows[i]}
	calls := w.row.calls // sorted by rank, as the members are
	for _, rank := range g.members {
		for len(calls) > 0 && c.rank(calls[0]) < rank {
			calls = calls[1:]
		}
		j, hasDump := c.index[rank]
		switch {
		case len(calls) > 0 && c.rank(calls[0]) == rank && c.stands(calls[0]):
			if w.come = append(w.come, rank); w.op == nil {
				w.op, w.at = c.entry(calls[0]).Op, at(c.entry(calls[0]))
			}
			w.first = min(cmp.Or(w.first, c.created(calls[0])), c.created(calls[0]))
			w.last = max(w.last, c.created(calls[0]))
		case len(calls) > 0 && c.rank(calls[0]) == rank || hasDump && c.tallies[j].n > 0 && c.tallies[j].last > i:
			w.done = append(w.done, rank)
		case !hasDump || c.tallies[j].n == 0 && c.dumps[j].Lost || g.peers && !g.told:
			w.unknown = append(w.unknown, rank)
		default:
			w.missing = append(w.missing, rank)
		}
	}
	if w.op == nil {
		return nil
	}
	return w
}

// lasts reports whether a wait had lasted for the patience when the dumps were taken.
func (c *comparison) lasts(w *wait) bool {
	since := w.last
	if len(w.missing) > 0 {
		since = w.first
	}
	return !slices.ContainsFunc(slices.Concat(w.come, w.missing), func(rank int) bool {
		d := c.dumps[c.index[rank]]
		return !d.Taken.IsZero() && d.Taken.Add(-d.Ahead).UnixNano()-since < int64(cmp.Or(c.cfg.Patience, time.Second))
	})
}
