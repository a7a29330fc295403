package failure

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/text"
)

// A Collective is what a worker's libraries have printed of the collectives of one group of ranks.
type Collective struct {
	Group    string `json:"group,omitempty"`     // as ProcessGroupNCCL names it; "" for the only one
	Op       string `json:"op,omitempty"`        // the one that it waited for in vain
	Seq      int    `json:"seq,omitempty"`       // its number
	Waited   int    `json:"waited_ms,omitempty"` // for how long
	Enqueued int    `json:"enqueued,omitempty"`  // the number of the last one that it began
	Missing  []int  `json:"missing,omitempty"`   // the ranks that did not come, as this one says
}

const (
	maxGroups  = 8 // of one worker
	maxMissing = 64
)

// readCollectives finds what a worker has printed of collectives.
func readCollectives(output []byte, rank int) (all []Collective) {
	output = output[max(0, len(output)-maxScan):]
	for line := range strings.SplitSeq(strings.ToLower(string(output)), "\n") {
		var s [5]string
		c := Collective{}
		if _, group, ok := strings.Cut(line, "[pg "); ok {
			group, _, _ = strings.Cut(group, " rank ")
			c.Group = oneLine(group, maxName)
		}
		if find(waits, line, &s[0], &s[1], &s[2], &s[3], &s[4]) != nil {
			c.Seq, c.Op, c.Waited = number(s[1]), oneLine(strings.ToUpper(s[2]), maxName), number(s[4])
		} else if find(progress, line, &s[0], &s[1]) != nil {
			c.Enqueued = number(s[1])
		} else if found := find(missing, line, &s[0], &s[1], &s[2]); found == nil {
			continue
		} else if c.Op = found.says; found.name == "desync" || number(s[1]) == rank { // not an inner job's rank that says so
			who := cmp.Or(map[string]string{"desync": s[1]}[found.name], s[2])
			for _, r := range strings.SplitN(who, ",", maxMissing) {
				c.Missing = append(c.Missing, number(strings.TrimSpace(r)))
			}
		}
		at := slices.IndexFunc(all, func(b Collective) bool { return b.Group == c.Group })
		if at >= 0 {
			b := &all[at]
			b.Op, b.Seq, b.Waited = cmp.Or(b.Op, c.Op), cmp.Or(b.Seq, c.Seq), cmp.Or(b.Waited, c.Waited)
			if b.Enqueued = max(b.Enqueued, c.Enqueued); b.Missing == nil {
				b.Missing = c.Missing
			}
		} else if len(all) < maxGroups {
			all = append(all, c)
		}
	}
	return all
}

// number reads the digits at the begin of s; 0 without any.
func number(s string) int {
	n, _ := strconv.Atoi(s[:len(s)-len(strings.TrimLeft(s, "0123456789"))])
	return n
}

// blame finds the worker that the others have lost or waited for in vain, if none failed by itself: one that
// was stopped and had raised an error before, else one that did not take part in the collective that others
// waited for, else one that another names. It is the one that failed.
func blame(failures []*ProcessFailure) {
	if !slices.ContainsFunc(failures, (*ProcessFailure).LostPeer) ||
		slices.ContainsFunc(failures, func(f *ProcessFailure) bool { return f.Kind == failed }) {
		return
	}
	for _, f := range failures {
		if f.Stopped() && f.TracebackFrom == fromStderr {
			text, _, _ := strings.Cut(f.Cause, "; stopped with ")
			f.accuse(text)
			return
		}
	}
	for _, f := range failures {
		for _, c := range f.Collectives {
			var late, named, silent *ProcessFailure
			var waiting []int
			had := 0
			for _, g := range failures {
				if len(g.Collectives) == 0 {
					silent = g
				}
				if g != f && slices.Contains(c.Missing, g.Rank) {
					named = g
				}
				for _, d := range g.Collectives {
					if d.Group == c.Group && d.Seq == c.Seq {
						waiting = append(waiting, g.Rank)
					} else if d.Group == c.Group && d.Enqueued > 0 && d.Enqueued < c.Seq {
						late, had = g, d.Enqueued
					}
				}
			}
			slices.Sort(waiting)
			switch {
			case late == nil && silent != nil && len(waiting) > 1 && len(waiting) == len(failures)-1 &&
				c.Seq > 0 && strings.Contains(c.Group, "default_pg"): // in which all are
				silent.accuse(fmt.Sprintf("did not take part in work %d (%s), for which ranks %s waited %d s: "+
					"it says nothing of it", c.Seq, c.Op, text.Ranges(waiting, ", "), c.Waited/1000))
				return
			case late != nil:
				late.accuse(fmt.Sprintf("did not take part in work %d (%s), for which ranks %s waited %d s: it had enqueued %d",
					c.Seq, c.Op, text.Ranges(waiting, ", "), c.Waited/1000, had))
				return
			case named != nil:
				named.accuse(fmt.Sprintf("did not come to the %s that other ranks waited for, says rank %d", c.Op, f.Rank))
				return
			case c.Seq > 0 && len(waiting) == len(failures) && len(waiting) > 1:
				f.Hint = "all ranks waited in the same work, none is missing: a slow step, or the network between the hosts"
			}
		}
	}
}

// accuse makes f the cause of the others' end.
func (f *ProcessFailure) accuse(cause string) {
	f.Kind, f.Cause = failed, oneLine(cause, maxCause)
	f.Hint = f.hint(f.Cause)
}
