package decide

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/golden"
)

var (
	phases = []Phase{Assigning, Running, Failing, Finished, Listening}
	events = []Event{EvAssigned, EvAssignFailed, EvStarted, EvStartFailed, EvSucceeded, EvFailing, EvFailed, EvLostPeers,
		EvNoNews, EvUnhealthy, EvSignal, EvAsked, EvLiveChange, EvNodesWaiting, EvNodeGone, EvDoneNodeGone, EvEvicted,
		EvClosed, EvClosedWhenDone, EvDisconnected, EvPeerRestarts, EvPeerLive, EvPeerGaveUp, EvPeerLostHost,
		EvPeerPreempted, EvBarrierPassed, EvBarrierTimedOut, EvBarrierOverdue, EvBarrierBroken}
)

// TestNext plays the files of testdata/scenarios, whose README says how they are written. Each event is in one.
// Source: SimpleElasticAgent._invoke_run; for several hosts, docs/decisions.md.
func TestNext(t *testing.T) {
	seen := map[Event]bool{}
	golden.Scenarios(t, "testdata/scenarios", func(t *testing.T) func(string) string {
		return func(line string) string {
			what, words, _ := strings.Cut(line, "; ")
			phase, event, _ := strings.Cut(what, ": ")
			ph, ev := Phase(phase), Event(event)
			if !slices.Contains(phases, ph) || !slices.Contains(events, ev) {
				t.Fatalf("step %q: no phase %q or no event %q", line, ph, ev)
			}
			seen[ev] = true
			state, act := Next(ev, ph, facts(t, words))
			return fmt.Sprintf("%s, %s\n", state, act)
		}
	})
	for _, ev := range events {
		if !seen[ev] {
			t.Errorf("no scenario has the event %q", ev)
		}
	}
}

// facts returns the facts that words say are true.
func facts(t *testing.T, words string) (f Facts) {
	named := map[string]*bool{"alone": &f.Alone, "follows": &f.Follows, "silent": &f.Silent, "unsettled": &f.Unsettled,
		"live": &f.Live, "formed": &f.Formed, "pending": &f.Pending, "left": &f.Left, "member": &f.Member, "all": &f.All,
		"over": &f.Over, "joins": &f.Joins, "holder": &f.Holder, "awaited": &f.Awaited, "drained": &f.Drained}
	for word := range strings.FieldsSeq(words) {
		if n, err := fmt.Sscanf(word, "restarts=%d", &f.RestartsLeft); n == 1 && err == nil {
			continue
		} else if fact := named[word]; fact != nil {
			*fact = true
		} else if verdict := Verdict(word); verdict == Retry || verdict == Stop || verdict == Drain {
			f.Verdict = verdict
		} else {
			t.Fatalf("no fact %q", word)
		}
	}
	return f
}

// An event that does not exist fails the job, whatever the phase.
func TestNextUnknown(t *testing.T) {
	for _, ev := range []Event{"", "of another kind"} {
		for _, ph := range phases {
			if state, act := Next(ev, ph, Facts{RestartsLeft: 5}); state != Unknown || act != ActFail {
				t.Errorf("%s, %q: %s, %s", ph, ev, state, act)
			}
		}
	}
}

// What holds whatever the facts are: only live workers, or their end, are answered by actions of theirs,
// workers are kept only if there are some, and none is replaced if none may be.
func TestNextInvariants(t *testing.T) {
	for bits := range 1 << 13 {
		is := func(n int) bool { return bits>>n&1 == 1 }
		for _, ph := range phases {
			f := Facts{RestartsLeft: bits & 1, Alone: is(1), Unsettled: is(2), Left: is(3), Member: is(4), All: is(5), Joins: is(6),
				Holder: is(7), Awaited: is(8), Drained: is(9), Live: ph == Running && is(10), Over: is(11) && (ph == Running || ph == Finished)}
			f.Formed = f.Live && is(12)
			for _, ev := range events {
				state, act := Next(ev, ph, f)
				own := ev == EvFailing || ev == EvFailed || ev == EvLostPeers
				if state == Unknown || act.IsLive() && !f.Live && !f.Over || act == ActKeep && !(f.Formed && (f.Left || f.Over)) ||
					act == ActReplace && (f.Member || f.RestartsLeft == 0) || act == ActReturn && own && f.RestartsLeft == 0 {
					t.Fatalf("%s, %s, %+v: %s, %s", ev, ph, f, state, act)
				}
			}
		}
	}
}
