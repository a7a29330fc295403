package flight

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Config says how Compare judges.
type Config struct {
	// World is the job's number of ranks, 0 if that is not known.
	World int
	// Patience is how long an operation must have been under way to be a wait, where it is known when
	// the dumps were taken. Default 1s.
	Patience time.Duration
	// Host and Place return where a rank runs, "host1", and what it does by its stack,
	// "train.py:88 in load_batch"; "" or nil if that is not known.
	Host, Place func(rank int) string
}

// A comparison is dumps that are lined up.
type comparison struct {
	cfg    Config
	dumps  []*Dump     // of different ranks, by rank
	index  map[int]int // of a rank's dump
	groups []*group
	flows  map[flow]*ends
	waits  []*wait
	notes  []string

	tallies []tally // of a group, by dump; cleared after each
	apart   string  // why the dumps are not of one run
	late    lateness
}

// A group is a process group as the dumps together have it.
type group struct {
	*Group
	told    bool  // who the members are; those that are seen in it, otherwise
	order   []int // the members by their rank in the group, if told
	members []int // sorted
	rows    []row // by sequence number
	at      map[int64]int
}

// A row is one operation of a group, and who has entered it.
type row struct {
	seq   int64
	calls []call // by dump
}

// A call is a rank's part of a row: entries of its dump, more than one if they are coalesced.
type call struct {
	dump, first, n int32
	state          State
}

// A tally is how far a rank is in a group.
type tally struct {
	any, ended bool
	last, done int64 // the last operations that it has entered, and that have ended for it
	rows       int   // that it is in
	since      int   // the index of the first
}

// A flow is what one rank of a group sends to another, and ends its two sides: 0 sends, 1 receives.
type (
	flow struct {
		group    *group
		from, to int // group ranks
	}
	ends [2]struct {
		total int    // operations in the record
		done  int    // of these, how many have ended
		open  *Entry // the first that has not
	}
)

// entry returns the first entry of a call.
func (c *comparison) entry(at call) *Entry { return &c.dumps[at.dump].Entries[at.first] }

func (c *comparison) rank(at call) int { return c.dumps[at.dump].Rank }

// alignAll sorts the entries of all dumps by group and operation.
func (c *comparison) alignAll() {
	known := map[*Group]*group{}
	same := map[string]*group{} // of Groups of several Readers
	c.flows, c.index = map[flow]*ends{}, map[int]int{}
	for i, d := range c.dumps {
		c.index[d.Rank] = i
		for j := range d.Entries {
			e := &d.Entries[j]
			g := known[e.Group]
			if g == nil {
				key := e.Group.key()
				if g = same[key]; g == nil {
					g = &group{Group: e.Group, at: map[int64]int{}}
					same[key], c.groups = g, append(c.groups, g)
				}
				known[e.Group] = g
			}
			if !e.P2P {
				g.add(e.Seq, int32(i), int32(j), e.State)
			}
		}
		if slices.ContainsFunc(d.Entries, func(e Entry) bool { return e.P2P }) {
			c.alignFlows(i, d, known)
		}
	}
	for _, g := range c.groups {
		slices.SortFunc(g.rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
		c.findMembers(g)
	}
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
		if g.Desc == defaultGroup {
			for rank := range c.index {
				seen[rank] = true
			}
		}
		if g.told = c.cfg.World > 0 && (g.Desc == defaultGroup || len(seen) == c.cfg.World); g.told {
			for rank := range c.cfg.World {
				seen[rank] = true
			}
		}
		g.order = slices.Sorted(maps.Keys(seen)) // as new_group orders them
	}
	g.members = slices.Sorted(slices.Values(g.order))
}

func (g *group) add(seq int64, dump, entry int32, state State) {
	i, ok := g.at[seq]
	if !ok {
		i = len(g.rows)
		g.at[seq], g.rows = i, append(g.rows, row{seq: seq})
	}
	calls := g.rows[i].calls
	if n := len(calls) - 1; n >= 0 && calls[n].dump == dump {
		calls[n].n++
		calls[n].state = max(calls[n].state, state) // the last of coalesced ones alone has a state
		return
	}
	g.rows[i].calls = append(calls, call{dump: dump, first: entry, n: 1, state: state})
}

// alignFlows adds a dump's sends and receives. Of coalesced ones only the last entry, which names no
// peer, has a state.
func (c *comparison) alignFlows(i int, d *Dump, known map[*Group]*group) {
	type batch struct {
		group *Group
		seq   int64
	}
	var ended map[batch]bool
	for j := range d.Entries {
		if e := &d.Entries[j]; e.P2P && e.Op.To < 0 && e.State == Completed {
			if ended == nil {
				ended = map[batch]bool{}
			}
			ended[batch{e.Group, e.Seq}] = true
		}
	}
	for j := range d.Entries {
		e := &d.Entries[j]
		if !e.P2P || e.Op.To < 0 {
			continue
		}
		key := flow{known[e.Group], e.Op.From, e.Op.To}
		f := c.flows[key]
		if f == nil {
			f = &ends{}
			c.flows[key] = f
		}
		side := &f[0]
		if e.Op.Name == recv {
			side = &f[1]
		}
		side.total++
		switch {
		case e.State == Completed || ended[batch{e.Group, e.Seq}]:
			side.done = side.total // what came before has ended, too
			side.open = nil
		case side.open == nil:
			side.open = e
		}
	}
}

// A wait is an operation that has not ended on some rank. come are the ranks that are in it, done those
// for whom it has ended or who are past it, missing those who have not come, and of the unknown the
// dumps do not tell.
type wait struct {
	group                        *group
	row                          *row // nil of a send or receive
	op                           *Op
	seq                          int64
	entries                      map[int]*Entry // of those who have come, by rank
	come, done, missing, unknown []int
	first, latest                int64 // when they came, by the clocks as corrected
}

func (w *wait) arrive(rank int, e *Entry, ahead time.Duration) {
	if w.entries == nil {
		w.entries, w.op, w.first = map[int]*Entry{}, e.Op, e.Created-int64(ahead)
	}
	w.entries[rank] = e
	w.first = min(w.first, e.Created-int64(ahead))
	w.latest = max(w.latest, e.Created-int64(ahead))
}

// findWait returns the first operation of a group that has not ended. The tallies are those of the group.
func (c *comparison) findWait(g *group) *wait {
	for i := range g.rows {
		for _, at := range g.rows[i].calls {
			if c.stands(at, g.rows[i].seq) {
				return c.newWait(g, &g.rows[i])
			}
		}
	}
	return nil
}

// stands reports whether a rank's part of an operation has not ended; a group's operations end in turn.
func (c *comparison) stands(at call, seq int64) bool {
	t := c.tallies[at.dump]
	return at.state != Completed && (!t.ended || seq > t.done)
}

func (c *comparison) newWait(g *group, r *row) *wait {
	w := &wait{group: g, row: r, seq: r.seq}
	calls := r.calls // sorted by rank, as the members are
	for _, rank := range g.members {
		for len(calls) > 0 && c.rank(calls[0]) < rank {
			calls = calls[1:]
		}
		i, hasDump := c.index[rank]
		switch {
		case len(calls) > 0 && c.rank(calls[0]) == rank:
			w.arrive(rank, c.entry(calls[0]), c.dumps[i].Ahead)
			if c.stands(calls[0], r.seq) {
				w.come = append(w.come, rank)
			} else {
				w.done = append(w.done, rank)
			}
		case !hasDump || !c.tallies[i].any && c.dumps[i].Lost:
			w.unknown = append(w.unknown, rank)
		case c.tallies[i].any && c.tallies[i].last > r.seq:
			w.done = append(w.done, rank)
		default:
			w.missing = append(w.missing, rank)
		}
	}
	w.op = w.entries[w.come[0]].Op
	return w
}

// flowWaits adds the sends and receives that have not ended.
func (c *comparison) flowWaits() {
	for key, f := range c.flows {
		if n := len(key.group.order); !key.group.told || key.from >= n || key.to >= n {
			continue
		}
		for side := range f {
			if e := f[side].open; e != nil && (side == 0 || f[0].open == nil) {
				c.waits = append(c.waits, c.flowWait(key, f, side))
			}
		}
	}
}

// flowWait is the wait of one side of a flow, or of both.
func (c *comparison) flowWait(key flow, f *ends, side int) *wait {
	peers := [2]int{-1, key.group.order[key.to]}
	if key.from >= 0 {
		peers[0] = key.group.order[key.from]
	}
	me, other := peers[side], peers[1-side]
	w := &wait{group: key.group, seq: f[side].open.Seq, come: []int{me}}
	w.arrive(me, f[side].open, c.dumps[c.index[me]].Ahead)
	i, hasDump := c.index[other]
	switch {
	case f[1-side].open != nil:
		w.arrive(other, f[1-side].open, c.dumps[i].Ahead)
		w.come = append(w.come, other)
	case !hasDump || c.dumps[i].Lost || c.dumps[c.index[me]].Lost || c.flows[flow{key.group, -1, key.to}] != nil:
		w.unknown = []int{other}
	case f[1-side].total > f[side].done:
		w.done = []int{other}
	default:
		w.missing = []int{other}
	}
	return w
}

// lasts reports whether a wait had lasted for the patience when the dumps were taken.
func (c *comparison) lasts(w *wait) bool {
	var seen []int64
	for _, rank := range slices.Concat(w.come, w.missing) {
		if d := c.dumps[c.index[rank]]; !d.Taken.IsZero() {
			seen = append(seen, d.Taken.Add(-d.Ahead).UnixNano())
		}
	}
	since := w.latest
	if len(w.missing) > 0 {
		since = w.first
	}
	return len(seen) == 0 || slices.Min(seen)-since >= int64(cmp.Or(c.cfg.Patience, time.Second))
}

// root returns the wait that others come from, with the ranks that keep it waiting and are in no wait
// themselves; or, where each wait is for a rank in another one, two of such a circle.
func (c *comparison) root() (w *wait, free []int, circle *wait) {
	in := map[int]*wait{} // the first wait that a rank is in
	for _, w := range c.waits {
		for _, rank := range w.come {
			if in[rank] == nil {
				in[rank] = w
			}
		}
	}
	var untold, stuck *wait
	for _, next := range c.waits {
		away := slices.DeleteFunc(slices.Clone(next.missing), func(rank int) bool { return in[rank] != nil })
		switch {
		case len(away) > 0:
			if w == nil || len(away) == len(next.missing) && len(free) < len(w.missing) {
				w, free = next, away
			}
		case len(next.missing) > 0:
		case len(next.unknown) > 0:
			untold = cmp.Or(untold, next)
		default:
			stuck = cmp.Or(stuck, next)
		}
	}
	if w != nil {
		return w, free, nil
	}
	passed := map[*wait]*wait{} // which way led from it
	for _, start := range c.waits {
		for w := start; len(w.missing) > 0 && passed[w] == nil; w = passed[w] {
			next := in[w.missing[0]]
			passed[w] = next
			if passed[next] != nil && c.reaches(next, w, passed) {
				return w, nil, next
			}
		}
	}
	return cmp.Or(untold, stuck), nil, nil
}

// reaches reports whether the way from one wait leads to another.
func (c *comparison) reaches(from, to *wait, passed map[*wait]*wait) bool {
	for range c.waits {
		if from == nil || from == to {
			break
		}
		from = passed[from]
	}
	return from == to
}
