package slow

import (
	"cmp"
	"strings"

	"github.com/muster-run/muster/internal/job/flight"
)

// Course is what a worker's flight recorders tell of its course: times are ns since 1970 by the worker's clock.
type Course struct {
	Arrivals []Arrivals // of each group
	// Entered is when it came to its first collective, 0 if that is no longer known. Stepping is when the first
	// step had ended after which all are alike; 0 if there is none.
	Entered, Stepping int64
	Stepped           int64 // when it came to the last collective of the last such step that has ended
}

// Read reads a worker's dumps.
func Read(dumps []*flight.Dump, rank int) (c Course) {
	for _, d := range dumps {
		if len(d.Entries) == 0 {
			continue
		}
		if first := d.Entries[0].Created; !d.Lost && (c.Entered == 0 || first < c.Entered) {
			c.Entered = first
		}
		groups, calls := map[*flight.Group]*Arrivals{}, map[*flight.Group][]*flight.Entry{}
		for i := range d.Entries {
			e := &d.Entries[i]
			a := groups[e.Group]
			if a == nil {
				a = &Arrivals{Rank: rank, Group: d.Library + " " + e.Group.Name, First: e.Seq}
				a.Title = cmp.Or(e.Group.Desc, e.Group.Name)
				groups[e.Group] = a
			}
			next := a.First + int64(len(a.At))
			if e.P2P || e.Seq < next {
				continue
			}
			if e.Seq > next { // some are not there
				a.First, a.At, calls[e.Group] = e.Seq, nil, nil
			}
			calls[e.Group] = append(calls[e.Group], e)
			at := e.Created
			if !together(e.Op.Name) {
				at = 0
			}
			a.At = append(a.At, at)
		}
		for g, a := range groups {
			c.step(a, calls[g])
			c.Arrivals = append(c.Arrivals, *a)
		}
	}
	return c
}

// step takes in the steps of a group.
func (c *Course) step(a *Arrivals, calls []*flight.Entry) {
	ops := make([]*flight.Op, len(calls))
	for i, e := range calls {
		ops[i] = e.Op
	}
	from := 0
	if a.Period, from = Period(ops); from == 0 {
		return
	}
	if at := calls[from].Created; c.Stepping == 0 || at < c.Stepping {
		c.Stepping = at
	}
	for end := from - 1; end < len(calls) && calls[end].State == flight.Completed; end += a.Period {
		c.Stepped = max(c.Stepped, calls[end].Created)
	}
}

// together reports whether an operation ends for nobody before all have come.
func together(name string) bool {
	return strings.HasPrefix(name, "all_") || strings.HasPrefix(name, "reduce_scatter") || name == "barrier"
}
