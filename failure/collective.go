package failure

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// A Collective is what a worker's libraries have printed of the collectives of one group of ranks.
type Collective struct {
	Group    string `json:"group,omitempty"`     // as ProcessGroupNCCL names it; "" for the only one
	Op       string `json:"op,omitempty"`        // the one that it waited for without success
	Seq      int    `json:"seq,omitempty"`       // its number
	Waited   int    `json:"waited_ms,omitempty"` // for how long
	Enqueued int    `json:"enqueued,omitempty"`  // the number of the last one that it began,
	Last     string `json:"last,omitempty"`      // and what that is, if none of another group was later
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

// blame finds the worker that the others have lost or waited for without success, if none failed by itself: one that
// was stopped and had raised an error before, else one that did not take part in the collective that others
// waited for, else one that another names, else the only one that has lost nobody. It is the one that failed.
func blame(failures []*ProcessFailure) {
	outvote(failures)
	if !slices.ContainsFunc(failures, (*ProcessFailure).LostPeer) ||
		slices.ContainsFunc(failures, func(f *ProcessFailure) bool { return f.Kind == failed }) {
		return
	}
	for _, f := range failures {
		if f.Stopped() && f.TracebackFrom == fromStderr {
			text, _, _ := strings.Cut(f.Cause, "; stopped with ")
			f.markCause(text)
			return
		}
	}
	groups, quiet, seen := map[string][]member{}, map[int]*ProcessFailure{}, map[string]bool{}
	for _, f := range failures {
		blames := false
		for _, c := range f.Collectives {
			groups[c.Group] = append(groups[c.Group], member{f, c})
			blames = blames || len(c.Missing) > 0
		}
		if !blames {
			quiet[f.Rank] = f
		}
	}
	for _, f := range failures {
		for _, c := range f.Collectives {
			if work := fmt.Sprint(c.Group, " ", c.Seq); c.Seq > 0 && !seen[work] {
				seen[work] = true
				if who, cause := missed(c, groups[c.Group], failures); who != nil {
					who.markCause(cause)
					return
				}
			}
			for _, rank := range c.Missing {
				if who := quiet[rank]; who != nil {
					who.markCause(fmt.Sprintf("did not come to the %s that other ranks waited for, says rank %d", c.Op, f.Rank))
					return
				}
			}
		}
	}
	if who := silent(failures); who != nil {
		who.markCause("the other workers lost their connections to it; it was stopped before it printed why")
		who.Hint = "Python prints an error after the finally clauses that it passes: log it before a long clean-up"
	}
}

// outvote finds workers that were in another collective than most others, or in one of another size, if gloo has ended
// one that received more than it expected. That one does not tell what it was in.
func outvote(failures []*ProcessFailure) {
	at := slices.IndexFunc(failures, func(f *ProcessFailure) bool {
		found := find(advice, f.Cause)
		return found != nil && found.name == "gloo-size"
	})
	if at < 0 {
		return
	}
	type begun struct { // what a worker began as a collective of a group
		group string
		seq   int
		what  string
	}
	votes, workers := map[begun][]int{}, 0 // the ranks
	for i, f := range failures {
		workers = max(workers, f.Workers)
		for _, c := range f.Collectives {
			if c.Last != "" && i != at {
				b := begun{c.Group, c.Enqueued, c.Last}
				votes[b] = append(votes[b], f.Rank)
			}
		}
	}
	work := func(b begun) string { return Collective{Group: b.group, Seq: b.seq, Op: b.what}.work() }
	all := slices.SortedFunc(maps.Keys(votes), func(a, b begun) int {
		return cmp.Or(len(votes[b])-len(votes[a]), cmp.Compare(work(a), work(b)))
	})
	for i, most := range all {
		slices.Sort(votes[most])
		ranks := text.Ranges(votes[most], ", ")
		for _, odd := range all[i+1:] {
			if odd.group == most.group && odd.seq == most.seq && len(votes[odd]) < len(votes[most]) {
				for _, f := range failures {
					if slices.Contains(votes[odd], f.Rank) {
						f.markCause(fmt.Sprintf("began %s where ranks %s began %s; gloo ended rank %d, which received more than "+
							"it expected", work(odd), ranks, most.what, failures[at].Rank))
					}
				}
				failures[at].Kind = lostPeer
				return
			}
		}
		if n := len(votes[most]); n > 1 && n == workers-1 {
			failures[at].Hint = fmt.Sprintf("ranks %s began %s: this rank began a smaller one, or another", ranks, work(most))
		}
	}
}

// silent finds the only one of all workers that has lost nobody, if the one that failed first has lost a connection.
func silent(failures []*ProcessFailure) (who *ProcessFailure) {
	workers, first := 0, (*ProcessFailure)(nil)
	for _, f := range failures {
		workers = max(workers, f.Workers)
		switch {
		case !f.LostPeer() && who != nil:
			return nil
		case !f.LostPeer():
			who = f
		case first == nil || f.FailedAt.Before(first.FailedAt):
			first = f
		}
	}
	if workers != len(failures) || !strings.Contains(first.Cause, " by peer") {
		return nil
	}
	return who
}

// A member is a worker of a group of ranks, and what it says of the group's collectives.
type member struct {
	*ProcessFailure
	said Collective
}

// missed finds the worker that did not take part in work c of a group with these members; nil if that is not known.
func missed(c Collective, members []member, failures []*ProcessFailure) (who *ProcessFailure, cause string) {
	var waiting []int
	had := 0
	for _, m := range members {
		if m.said.Seq == c.Seq {
			waiting = append(waiting, m.Rank)
		} else if m.said.Enqueued < c.Seq && m.said.Enqueued >= had {
			who, had = m.ProcessFailure, m.said.Enqueued
		}
	}
	slices.Sort(waiting)
	n, others := len(waiting), len(failures)-1
	if n == others && n == len(members) { // the other one says nothing of the group
		who = failures[slices.IndexFunc(failures, func(f *ProcessFailure) bool {
			_, waits := slices.BinarySearch(waiting, f.Rank)
			return !waits
		})]
	}
	// All workers are in the default group; of another one that is likely if all others of a larger number are.
	if who != nil && (had > 0 || n == others && (n > 2 || n > 1 && strings.Contains(c.Group, "default_pg"))) {
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
	if n > others && n > 1 {
		for _, f := range failures {
			f.Hint = "all ranks waited in the same work, none is missing: a slow step, or the network between the hosts"
		}
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

// markCause makes f the cause of the others' end.
func (f *ProcessFailure) markCause(cause string) {
	f.Kind, f.Cause = failed, oneLine(cause, maxCause)
	f.Hint = f.hint(f.Cause)
}
