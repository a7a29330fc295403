package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/internal/test/golden"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// TestLiveScenarios plays the files of testdata/scenarios, whose README says how they are written.
func TestLiveScenarios(t *testing.T) {
	golden.Scenarios(t, "testdata/scenarios", func(t *testing.T) func(string) string {
		l := &liveLab{t: t}
		t.Cleanup(func() {
			if l.at != nil {
				l.at.close()
			}
		})
		return l.step
	})
}

// A liveLab has an agent whose workers can change their group, in an attempt.
type liveLab struct {
	t     *testing.T
	a     *Agent
	at    *attempt
	group *liveGroup
	n     news
	act   decide.Action // what the last news are answered by
}

// step performs a line of a scenario, and returns what came of it.
func (l *liveLab) step(line string) string {
	words := strings.Fields(line)
	values := map[string]string{}
	words = slices.DeleteFunc(words, func(word string) bool {
		name, value, ok := strings.Cut(word, "=")
		if ok {
			values[name] = value
		}
		return ok
	})
	number := func(name string) int {
		n, err := strconv.Atoi(values[name])
		if err != nil {
			l.t.Fatalf("step %q: %s: %v", line, name, err)
		}
		return n
	}
	switch words[0] {
	case "agent":
		l.begin(number("workers"), number("members"), number("hosts"), number("restarts"))
	case "formed", "pending":
		m := &membership{pending: words[0] == "pending"}
		for _, n := range words[1:] {
			members, err := strconv.Atoi(n)
			if err != nil {
				l.t.Fatalf("step %q: %v", line, err)
			}
			m.locals = append(m.locals, make([]int, members))
		}
		l.at.live.formed.Store(m)
	case "broken":
		l.a.restarts.used++
		l.at.live.broken.Store(&membership{paid: true})
	case "over":
		l.a.live.Update(func(s *link.State) { s.Over = true })
	case "finished":
		l.at.status.phase = decide.Finished
	case "fail":
		for i, word := range words[1:] {
			rank, err := strconv.Atoi(word)
			if err != nil {
				l.t.Fatalf("step %q: %v", line, err)
			}
			if exit := (process.Exit{LocalRank: rank, Code: -9}); i == 0 {
				l.n = news{ev: decide.EvFailing, exit: exit}
			} else {
				l.group.failed <- exit
			}
		}
		return l.decide()
	case "hear":
		l.n = news{ev: decide.Event(strings.Join(words[1:], " "))}
		switch l.n.ev {
		case decide.EvNodesWaiting:
			if l.n.change.Kind = rendezvous.NodeLost; values["for"] == "join" {
				l.n.change.Kind = rendezvous.NodesWaiting
			}
		case decide.EvNodeGone:
			l.n.change = rendezvous.Change{Kind: rendezvous.NodeLost, Rank: number("rank")}
		case decide.EvPeerRestarts, decide.EvPeerLive:
			l.n.record = &peers.Record{Decision: &policy.Decision{Action: policy.Action(values["policy"])}}
		}
		return l.decide()
	case "act":
		return l.carryOut()
	default:
		l.t.Fatalf("step %q", line)
	}
	return ""
}

func (l *liveLab) begin(workers, members, hosts, most int) {
	state := link.State{Workers: map[int]*link.Worker{}, Change: 2}
	for i := range workers {
		state.Workers[i] = &link.Worker{}
		state.Workers[i].Member = i < members
	}
	l.group = &liveGroup{failed: make(chan process.Exit, workers)}
	l.a = &Agent{live: link.New(state), log: slog.New(slog.DiscardHandler),
		restarts: restarts{most: most}, cfg: Config{Rendezvous: job{}}}
	l.at = bareAttempt(l.t.Context(), l.a)
	l.at.status.phase, l.at.team.group, l.at.team.logs = decide.Running, l.group, &logs.Attempt{}
	l.at.round = &rendezvous.Info{WorldSize: hosts, Store: store.NewMemory(), JobStore: store.NewMemory()}
}

// decide finds out the facts, and says what they are, what is decided, and what was noted.
func (l *liveLab) decide() string {
	f := l.a.facts(l.at, &l.n)
	words := []string{fmt.Sprintf("restarts=%d", f.RestartsLeft)}
	for field, value := range reflect.ValueOf(f).Fields() {
		switch {
		case value.Kind() == reflect.Bool && value.Bool():
			words = append(words, strings.ToLower(field.Name))
		case value.Kind() == reflect.String && value.Len() > 0:
			words = append(words, value.String())
		}
	}
	state, act := decide.Next(l.n.ev, l.at.status.phase, f)
	l.act = act
	said := fmt.Sprintf("%s: %s; %s\n%s, %s\n", l.at.status.phase, l.n.ev, strings.Join(words, " "), state, act)
	if lost := slices.Sorted(maps.Keys(l.at.live.lostWorkers)); len(lost) > 0 {
		said += fmt.Sprintf("lost: %d\n", lost)
	}
	if n := len(l.group.failed); n > 0 {
		said += fmt.Sprintf("news to come: %d\n", n)
	}
	return said
}

// carryOut does what was decided, and says what the workers hear.
func (l *liveLab) carryOut() string {
	_, ends := l.a.act(l.t.Context(), l.at, &l.n, l.act)
	said := "the attempt continues"
	if ends {
		said = "the attempt ends"
	}
	if l.a.live.LastChange() > 2 {
		said += ", and the workers are interrupted"
	}
	if excluded := slices.Sorted(maps.Keys(l.at.live.excluded)); len(excluded) > 0 {
		said += fmt.Sprintf(", without %d", excluded)
	}
	return said + "\n"
}
