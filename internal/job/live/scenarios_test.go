package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/golden"
)

// TestScenarios plays the files of testdata/scenarios, whose README says how they are written.
func TestScenarios(t *testing.T) {
	golden.Scenarios(t, "testdata/scenarios", func(t *testing.T) func(string) string {
		l := &lab{t: t, change: 1, uuid: 10, hosts: map[string]Host{}, handles: map[string]string{},
			pauses: map[string]*pause{}}
		return l.step
	})
}

// A lab has some hosts, by letter, and what their agents do.
type lab struct {
	t       *testing.T
	now     time.Duration // since the scenario's begin
	change  int
	hosts   map[string]Host
	handles map[string]string // of the workers, by name
	pauses  map[string]*pause // of hosts whose members have to pause
	plan    *Plan
	nodes   []string // the hosts in it, by group rank
	uuid    int64    // of the last plan
	story   strings.Builder
}

// A pause is how the members of a host pause, and what came of it last.
type pause struct {
	Rest
	said  string
	until time.Time // when the agent looks again
}

func (l *lab) clock() time.Time { return time.Unix(1e9, 0).Add(l.now) }

func (l *lab) say(format string, args ...any) { fmt.Fprintf(&l.story, format+"\n", args...) }

// names are those of all hosts, in order of group rank.
func (l *lab) names() []string { return slices.Sorted(maps.Keys(l.hosts)) }

// worker returns one by its name, such as a0: the host and the local rank.
func (l *lab) worker(name string) (host Host, local int) {
	local, err := strconv.Atoi(name[1:])
	if err != nil {
		l.t.Fatalf("worker %q: %v", name, err)
	}
	if l.hosts[name[:1]] == nil {
		l.hosts[name[:1]] = Host{}
	}
	return l.hosts[name[:1]], local
}

// step performs a line of a scenario, and returns what came of it.
func (l *lab) step(line string) string {
	l.story.Reset()
	values, words := map[string]int64{}, []string{}
	for word := range strings.FieldsSeq(line) {
		if name, value, ok := strings.Cut(word, "="); !ok {
			words = append(words, word)
		} else if n, err := strconv.ParseInt(value, 10, 64); err != nil || !slices.Contains(known, name) {
			l.t.Fatalf("step %q: %s is none of %v, or %v", line, name, known, err)
		} else {
			values[name] = n
		}
	}
	switch what, names := words[0], words[1:]; what {
	case "host":
		for _, name := range names {
			l.hosts[name] = Host{}
		}
	case "lost":
		for _, name := range names {
			delete(l.hosts, name)
			delete(l.pauses, name)
		}
	case "change":
		l.change++
		clear(l.pauses)
	case "pause":
		for _, name := range l.names() {
			l.pauses[name] = &pause{Rest: Rest{Change: l.change, Until: l.clock().Add(l.duration(words[1]))}}
		}
	case "others":
		for _, name := range names {
			l.pauses[name].Others = true
		}
	case "wait":
		l.wait(l.duration(words[1]))
	case "agree":
		l.agree()
	case "part", "place", "meet", "taken", "news":
		clear(l.pauses)
		for _, name := range l.names() {
			l.say("%s: %s", name, l.ask(name, what))
		}
	default:
		for _, name := range names {
			l.hear(what, name, values)
		}
	}
	l.look()
	return l.story.String()
}

// known are the names of values.
var known = []string{"step", "lineage", "next", "size", "place", "group", "of"}

func (l *lab) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		l.t.Fatal(err)
	}
	return d
}

// hear has something happen to a worker, or has the worker say something.
func (l *lab) hear(what, name string, values map[string]int64) {
	host, local := l.worker(name)
	if what == "new" { // a process, perhaps in place of another
		if host[local] != nil {
			l.handles[name] += "'"
		} else {
			l.handles[name] = name
		}
		host[local] = &Worker{}
		return
	}
	x := host[local]
	if x == nil {
		x = &Worker{}
		host[local], l.handles[name] = x, name
	}
	if x.Gone {
		l.t.Fatalf("%s %s: it has ended; let a new one start", what, name)
	}
	x.Heard = true
	said := &Said{Change: l.change, Handle: l.handles[name],
		Step: values["step"], Lineage: values["lineage"], Next: values["next"]}
	for value, to := range map[string]*int{"size": &x.Size, "place": &x.Place, "group": &x.Replica} {
		if n, ok := values[value]; ok {
			*to = int(n)
		}
	}
	switch what {
	case "ready":
		said.Change = 0
		x.Hear("ready", said)
	case "was", "waits":
		x.Member, x.Done, x.of = what == "was", l.change-1, values["of"]
		x.Hear("ready", said)
	case "rests":
		if _, ok := values["step"]; !ok {
			said.Step, said.Lineage = x.Ready.Step, x.Ready.Lineage
		} else if said.Lineage == 0 {
			said.Lineage = x.of
		}
		x.Hear("ready", said)
	case "done": // it has taken the state of the plan's source
		if l.plan != nil && l.plan.Source >= 0 {
			x.Ready.Step, x.Ready.Lineage = l.plan.Steps[l.plan.Source], cmp.Or(l.plan.Lineage, l.plan.UUID)
		}
		x.Hear("done", said)
	case "at":
		x.Hear("at", said)
	case "failed":
		said.Error = "reset"
		x.Hear("failed", said)
	case "gone":
		x.Gone = true
	default:
		l.t.Fatalf("step %q", what)
	}
}

// agree makes the plan of all hosts.
func (l *lab) agree() {
	l.nodes = l.names()
	var parts []Part
	for _, name := range l.nodes {
		parts = append(parts, l.hosts[name].Part(l.change))
	}
	l.uuid++
	l.plan = Agree(parts)
	l.plan.UUID = l.uuid
	l.say("%s", describe(l.plan, l.nodes))
}

// describe is a plan in words.
func describe(p *Plan, nodes []string) string {
	switch {
	case p.Form:
		return "the workers that start are waited for"
	case p.Inconsistent:
		return "no plan: " + p.Why
	}
	var names []string
	for i, locals := range p.Locals {
		for _, local := range locals {
			names = append(names, fmt.Sprintf("%s%d", nodes[i], local))
		}
	}
	of := func(ranks []int) (list []string) {
		for _, rank := range ranks {
			list = append(list, names[rank])
		}
		return list
	}
	out := "plan:"
	for i, name := range names {
		if p.Handles[i] != name {
			name = p.Handles[i]
		}
		out += fmt.Sprintf(" %s@%d", name, p.Steps[i])
	}
	out += fmt.Sprintf(", lineage %d", p.Lineage)
	if p.Source >= 0 {
		out += ", the state of " + names[p.Source]
	}
	if len(p.Joined) > 0 {
		out += ", for " + strings.Join(of(p.Joined), " ")
	}
	for i, group := range p.Groups {
		out += fmt.Sprintf(", group %d %s", i+1, strings.Join(of(group), " "))
	}
	return out + fmt.Sprintf(", lacks %d", p.Lacks)
}

// ask returns what a host says of its workers.
func (l *lab) ask(name, what string) string {
	host, node := l.hosts[name], slices.Index(l.nodes, name)
	switch what {
	case "part":
		part := host.Part(l.change)
		out := ""
		for _, m := range part.Members {
			out += fmt.Sprintf("%d %s@%d", m.LocalRank, m.Handle, m.Step)
			for _, value := range []struct {
				name string
				n    int64
			}{{"lineage", m.Lineage}, {"next", m.Next}, {"place", int64(m.Place)}, {"group", int64(m.Replica)}, {"of", m.Of}} {
				if value.n != 0 {
					out += fmt.Sprintf(" %s=%d", value.name, value.n)
				}
			}
			out += ", "
		}
		if out += fmt.Sprintf("%d starting", part.Starting); part.Size != 0 {
			out += fmt.Sprintf(", replica groups of %d", part.Size)
		}
		return out
	case "place":
		ranks, lost := host.Place(l.plan, node)
		if lost >= 0 {
			return fmt.Sprintf("%s%d is not the one that was planned", name, lost)
		}
		var out []string
		for _, local := range slices.Sorted(maps.Keys(ranks)) {
			out = append(out, fmt.Sprintf("%s%d has rank %d", name, local, ranks[local]))
		}
		return cmp.Or(strings.Join(out, ", "), "no member")
	case "meet":
		switch step, all := host.Meeting(l.change); {
		case !all:
			return "not all have said where they are"
		case step < 0:
			return "not all are members of a group"
		default:
			return fmt.Sprintf("at step %d", step)
		}
	case "taken":
		ranks := map[int]int{}
		for i, local := range l.plan.Locals[node] {
			ranks[local] = l.plan.First(node) + i
		}
		all, took, failed := host.Taken(l.change, ranks)
		if all && took == 0 && failed == nil && len(ranks) > 0 {
			return "none is left"
		}
		return map[bool]string{true: "all have taken part", false: "not all have taken part"}[all] + because(failed)
	}
	starts := map[bool]string{true: "none starts", false: "some start"}[host.Settled()]
	return fmt.Sprintf("%s, %d join%s", starts, host.Joining(), because(host.FailedMember(l.change)))
}

func because(failed *Said) string {
	if failed == nil {
		return ""
	}
	return fmt.Sprintf(", %s failed: %s", failed.Handle, failed.Error)
}

// wait lets time pass; agents look at their workers when they want to.
func (l *lab) wait(d time.Duration) {
	for end := l.now + d; ; l.look() {
		at := l.clock().Add(end - l.now)
		for _, p := range l.pauses {
			if p.until.Before(at) && p.until.After(l.clock()) {
				at = p.until
			}
		}
		if l.now += at.Sub(l.clock()); l.now == end {
			return
		}
	}
}

// look has all agents look at their workers, and notes what is new.
func (l *lab) look() {
	for _, name := range l.names() {
		p := l.pauses[name]
		if p == nil {
			continue
		}
		for {
			step, until := p.Next(l.hosts[name], l.clock())
			p.until = until
			said := steps[step]
			if step == Wait {
				said = fmt.Sprintf("%s until %v", said, l.now+until.Sub(l.clock()))
			}
			for _, i := range slices.Sorted(maps.Keys(l.hosts[name])) {
				if x := l.hosts[name][i]; step == Kill && x.Member && !x.Gone && x.Late(l.change, l.clock()) {
					said += fmt.Sprintf(" %s%d", name, i)
					x.Gone = true
				}
			}
			if said != p.said {
				l.say("%v %s: %s", l.now, name, said)
			}
			if p.said = said; step != Kill && step != Interrupt {
				break
			}
		}
	}
}

var steps = [...]string{Wait: "wait", Interrupt: "interrupt", Rested: "all rest", Kill: "kill"}
