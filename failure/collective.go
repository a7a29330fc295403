package failure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/text"
)

// A Collective is what a worker's libraries have printed of the collectives of one group of ranks.
type Collective struct {
	Group     string `json:"group,omitempty"`     // as ProcessGroupNCCL names it; "" for the only one
	Op        string `json:"op,omitempty"`        // the one that it waited for in vain
	Seq       int    `json:"seq,omitempty"`       // its number
	Waited    int    `json:"waited_ms,omitempty"` // for how long
	Enqueued  int    `json:"enqueued,omitempty"`  // the number of the last one that it began
	Completed int    `json:"completed,omitempty"` // and of the last one that ended
	Missing   []int  `json:"missing,omitempty"`   // the ranks that did not come, as this one says
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
		} else if find(progress, line, &s[0], &s[1], &s[2]) != nil {
			c.Enqueued, c.Completed = number(s[1]), number(s[2])
		} else if found := find(missing, line, &s[0], &s[1], &s[2], &s[3]); found != nil {
			who := s[1]
			if c.Op = found.says; found.name == "monitored-barrier" { // which says who says so; an inner job's rank may, too
				if who = s[2]; number(s[1]) != rank {
					continue
				}
			}
			for _, r := range strings.SplitN(who, ",", maxMissing) {
				c.Missing = append(c.Missing, number(strings.TrimSpace(r)))
			}
		} else {
			continue
		}
		at := slices.IndexFunc(all, func(b Collective) bool { return b.Group == c.Group })
		switch {
		case at >= 0:
			all[at].add(c)
		case len(all) < maxGroups:
			all = append(all, c)
		}
	}
	return all
}

// add completes what is known of a group.
func (c *Collective) add(b Collective) {
	if c.Seq == 0 {
		c.Seq, c.Op, c.Waited = b.Seq, b.Op, b.Waited
	}
	c.Enqueued, c.Completed = max(c.Enqueued, b.Enqueued), max(c.Completed, b.Completed)
	if c.Missing == nil {
		c.Missing = b.Missing
	}
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
	if !onlyLostPeers(failures) {
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
			waiting := waiters(failures, c)
			for _, late := range failures {
				if g := late.of(c.Group); c.Seq > 0 && g.Enqueued > 0 && g.Enqueued < c.Seq {
					late.accuse(fmt.Sprintf("did not take part in work %d (%s), for which ranks %s waited %d s: it had enqueued %d",
						c.Seq, c.Op, text.Ranges(waiting, ", "), c.Waited/1000, g.Enqueued))
					return
				}
			}
			for _, late := range failures {
				if late != f && slices.Contains(c.Missing, late.Rank) {
					late.accuse(fmt.Sprintf("did not come to the %s that other ranks waited for, says rank %d", c.Op, f.Rank))
					return
				}
			}
			if c.Seq > 0 && len(waiting) == len(failures) && len(waiting) > 1 {
				for _, f := range failures {
					f.Hint = "all ranks waited in the same work, none is missing: a slow step, or the network between the hosts"
				}
			}
		}
	}
}

// accuse makes f the cause of the others' end.
func (f *ProcessFailure) accuse(cause string) {
	f.Kind, f.Cause = failed, oneLine(cause, maxCause)
	f.Hint = f.hint(f.Cause)
}

// of is what the worker has said of a group of ranks.
func (f *ProcessFailure) of(group string) Collective {
	for _, c := range f.Collectives {
		if c.Group == group {
			return c
		}
	}
	return Collective{}
}

// waiters are the ranks that waited for the same as c.
func waiters(failures []*ProcessFailure, c Collective) (ranks []int) {
	for _, f := range failures {
		if f.of(c.Group).Seq == c.Seq {
			ranks = append(ranks, f.Rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// onlyLostPeers reports whether the failures are all the consequence of another worker's.
func onlyLostPeers(failures []*ProcessFailure) bool {
	return slices.ContainsFunc(failures, (*ProcessFailure).LostPeer) && !slices.ContainsFunc(failures,
		func(f *ProcessFailure) bool { return !f.LostPeer() && !f.Stopped() })
}
