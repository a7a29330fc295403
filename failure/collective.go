package failure

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// A Collective is what a worker's libraries have printed of the collectives of one group of ranks.
type Collective struct {
	Group    string `json:"group,omitempty"`     // as ProcessGroupNCCL names it; "" for the only one
	Op       string `json:"op,omitempty"`        // the one that it waited for in vain
	Seq      int    `json:"seq,omitempty"`       // its number
	Waited   int    `json:"waited_ms,omitempty"` // for how long
	Enqueued int    `json:"enqueued,omitempty"`  // the number of the last one that it began
	Missing  []int  `json:"missing,omitempty"`   // the ranks that did not come, as this one says
	At       string `json:"at,omitempty"`        // where the worker was meanwhile, by its stack
}

const maxGroups, maxMissing = 8, 64 // of one worker

// readCollectives finds what a worker has printed of collectives.
func readCollectives(output []byte, rank int) (all []Collective) {
	var s [5]string
	var wait Collective // whose group the next line names
	output = output[max(0, len(output)-maxScan):]
	for line := range strings.SplitSeq(string(output), "\n") {
		found := find(work, line, &s[0], &s[1], &s[2], &s[3], &s[4])
		if found == nil {
			continue
		}
		_, group, _ := strings.Cut(line, "[PG ")
		group, _, _ = strings.Cut(group, " Rank ")
		c := Collective{Group: oneLine(group, maxName)}
		switch found.says {
		case "waits":
			c.Seq, _ = strconv.Atoi(s[1])
			c.Waited, _ = strconv.Atoi(s[4])
			if c.Op = oneLine(s[2], maxName); c.Group == "" {
				wait = c
				continue
			}
		case "enqueued":
			if c.Enqueued, _ = strconv.Atoi(s[1]); c.Group != "" && !strings.Contains(line, " dump signal ") {
				c.Seq, c.Op, c.Waited, wait = wait.Seq, wait.Op, wait.Waited, Collective{}
			}
		default:
			if c.Op = found.says; c.Group == "" && len(all) > 0 {
				c.Group = all[len(all)-1].Group
			}
			for _, r := range strings.SplitN(s[2], ",", maxMissing) {
				n, err := strconv.Atoi(strings.TrimSpace(r))
				if err == nil && (s[1] == strconv.Itoa(rank) || s[1] == "") { // not an inner job's rank says so
					c.Missing = append(c.Missing, n)
				}
			}
		}
		all = join(all, c)
	}
	return join(all, wait)
}

// join adds what a line says to what is known of its group.
func join(all []Collective, c Collective) []Collective {
	for i := range all {
		if b := &all[i]; b.Group == c.Group {
			b.Op, b.Seq, b.Waited = cmp.Or(b.Op, c.Op), cmp.Or(b.Seq, c.Seq), cmp.Or(b.Waited, c.Waited)
			b.Enqueued, b.Missing = max(b.Enqueued, c.Enqueued), append(b.Missing, c.Missing...)
			b.Missing = b.Missing[:min(len(b.Missing), maxMissing)]
			return all
		}
	}
	if len(all) == maxGroups || c.Op == "" && c.Enqueued == 0 {
		return all
	}
	return append(all, c)
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
			if who, cause := f.missed(c, failures); who != nil {
				who.accuse(cause)
				return
			}
		}
	}
}

// missed finds the worker that did not take part in a collective of f's; nil if that is not known.
func (f *ProcessFailure) missed(c Collective, failures []*ProcessFailure) (who *ProcessFailure, cause string) {
	var waiting []int
	var named *ProcessFailure
	had := 0
	for _, g := range failures {
		var d Collective
		if i := slices.IndexFunc(g.Collectives, func(d Collective) bool { return d.Group == c.Group }); i >= 0 {
			d = g.Collectives[i]
		}
		if d.Seq == c.Seq {
			waiting = append(waiting, g.Rank)
		} else if d.Enqueued < c.Seq && d.Enqueued >= had {
			who, had = g, d.Enqueued
		}
		if slices.Contains(c.Missing, g.Rank) && g != f {
			named = g
		}
	}
	// All workers are in the default group; of another one that is likely if all others of a larger number are.
	n, others := len(waiting), len(failures)-1
	if c.Seq > 0 && (had > 0 || n == others && who != nil && (n > 2 || n > 1 && strings.Contains(c.Group, "default_pg"))) {
		slices.Sort(waiting)
		said := "it says nothing of it"
		for _, d := range who.Collectives {
			if had > 0 {
				said = fmt.Sprintf("it had enqueued %d", had)
				if d.At != "" {
					said += ", and was in " + d.At
				}
			} else if d.Seq > 0 {
				said = "it waited in " + d.work()
			}
		}
		return who, fmt.Sprintf("did not take part in %s, for which ranks %s waited %d s: %s", c.work(),
			text.Ranges(waiting, ", "), c.Waited/1000, said)
	}
	if named != nil {
		return named, fmt.Sprintf("did not come to the %s that other ranks waited for, says rank %d", c.Op, f.Rank)
	}
	if c.Seq > 0 && n > others && n > 1 {
		f.Hint = "all ranks waited in the same work, none is missing: a slow step, or the network between the hosts"
	}
	return nil, ""
}

// work names a collective: "work 7 (ALLREDUCE of group dp)".
func (c Collective) work() string {
	if _, group, _ := strings.Cut(strings.TrimSuffix(c.Group, ")"), "("); group != "" && group != "default_pg" {
		c.Op += " of group " + group
	}
	return fmt.Sprintf("work %d (%s)", c.Seq, c.Op)
}

// accuse makes f the cause of the others' end.
func (f *ProcessFailure) accuse(cause string) {
	f.Kind, f.Cause = failed, oneLine(cause, maxCause)
	f.Hint = f.hint(f.Cause)
}
