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
		groups, ops := map[*flight.Group]*Arrivals{}, map[*flight.Group][]*flight.Op{}
		for _, e := range d.Entries {
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
				a.First, a.At, ops[e.Group] = e.Seq, nil, nil
			}
			ops[e.Group] = append(ops[e.Group], e.Op)
			if !together(e.Op.Name) {
				e.Created = 0
			}
			a.At = append(a.At, e.Created)
		}
		for g, a := range groups {
			stepping := 0
			if a.Period, stepping = Period(ops[g]); stepping > 0 && (c.Stepping == 0 || a.At[stepping] < c.Stepping) {
				c.Stepping = a.At[stepping]
			}
			c.Arrivals = append(c.Arrivals, *a)
		}
	}
	return c
}

// together reports whether an operation ends for nobody before all have come.
func together(name string) bool {
	return strings.HasPrefix(name, "all_") || strings.HasPrefix(name, "reduce_scatter") || name == "barrier"
}
