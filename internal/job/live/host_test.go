package live

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func member(ready, done int) *Worker {
	return &Worker{Heard: true, Member: true, Done: done, Ready: &Said{Change: ready, Handle: "h", Step: 9, Lineage: 5}}
}

func TestPart(t *testing.T) {
	gone := member(4, 3)
	gone.Gone = true
	host := Host{
		0: member(4, 3), // at rest
		1: member(3, 3), // not yet
		2: member(4, 0), // it was told of a membership that did not come about
		3: gone,
		4: {Heard: true, Ready: &Said{Handle: "n"}}, // joins
		5: {},                                       // starts
	}
	want := Part{Members: []Member{{0, "h", 9, 5, 0, 0, 0, 0}, {2, "h", 9, 5, 0, 0, 0, 0}, {4, "n", 0, 0, 0, 0, 0, 0}}, Starting: 1}
	if diff := cmp.Diff(want, host.Part(4)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if host.Settled() {
		t.Error("nobody starts, it says")
	}
}

// Members pause by themselves, or are interrupted to once others rest or fail.
func TestRest(t *testing.T) {
	began := time.Unix(100, 0)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	failed, past := member(3, 3), member(3, 3)
	failed.Failed = &Said{Change: 3}
	past.At = &Said{Change: 4}
	for _, tt := range []struct {
		name  string
		host  Host
		after time.Duration
		want  RestStep
		until time.Duration
	}{
		{"all rest", Host{0: member(4, 3), 1: {}}, 0, Rested, 0},
		{"none does", Host{0: member(3, 3)}, 0, Wait, 15 * time.Second},
		{"none does in time", Host{0: member(3, 3)}, 30 * time.Second, Kill, 30 * time.Second},
		{"one does", Host{0: member(3, 3), 1: member(4, 3)}, 5 * time.Second, Wait, 6 * time.Second},
		{"one does, late", Host{0: member(3, 3), 1: member(4, 3)}, 29500 * time.Millisecond, Wait, 29750 * time.Millisecond},
		{"a collective has failed", Host{0: failed, 1: member(3, 3)}, time.Second, Interrupt, time.Second},
		{"one has gone past the step", Host{0: past}, time.Second, Interrupt, time.Second},
	} {
		rest := Rest{Change: 4, Until: at(30 * time.Second)}
		if step, until := rest.Next(tt.host, at(tt.after)); step != tt.want || !until.Equal(at(tt.until)) {
			t.Errorf("%s: %v until %v, want %v until %v", tt.name, step, until.Sub(began), tt.want, tt.until)
		}
	}
	others := Rest{Change: 4, Until: at(30 * time.Second), Others: true}
	for _, want := range []RestStep{Interrupt, Wait} {
		if step, _ := others.Next(Host{0: member(3, 3)}, at(time.Second)); step != want {
			t.Errorf("those of another host rest: %v, want %v", step, want)
		}
	}
	silent := Rest{Change: 4, Until: at(30 * time.Second)} // a host that was lost without a word
	for i, want := range []RestStep{Wait, Interrupt, Wait, Kill} {
		if step, _ := silent.Next(Host{0: member(3, 3)}, at([]time.Duration{0, 15, 16, 30}[i]*time.Second)); step != want {
			t.Errorf("nobody rests, time %d: %v, want %v", i, step, want)
		}
	}
	host, rest := Host{0: member(3, 3), 1: member(4, 3)}, Rest{Change: 4, Until: at(30 * time.Second)}
	for i, want := range []RestStep{Wait, Interrupt, Wait} {
		if step, _ := rest.Next(host, at(time.Duration(i)*InterruptAfter)); step != want {
			t.Errorf("a straggler, time %d: %v, want %v", i, step, want)
		}
	}
}

// Changes that follow each other give a worker that answers none of them no more time; the others
// have as long for each.
func TestRestLate(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	stuck, other := member(3, 3), member(3, 3)
	host := Host{0: stuck, 1: other}
	next := func(change, until, now int) RestStep {
		rest := Rest{Change: change, Until: at(until)}
		step, _ := rest.Next(host, at(now))
		return step
	}
	if step := next(4, 30, 0); step != Wait {
		t.Error(step)
	}
	other.Ready = &Said{Change: 4}
	if step := next(5, 50, 20); step != Wait {
		t.Error(step)
	}
	if step := next(6, 60, 30); step != Kill || !stuck.Late(6, at(30)) || other.Late(6, at(30)) {
		t.Errorf("%v, late are %v and %v", step, stuck.Late(6, at(30)), other.Late(6, at(30)))
	}
	if step := next(6, 60, 60); step != Kill || !other.Late(6, at(60)) {
		t.Errorf("%v, late: %v", step, other.Late(6, at(60)))
	}
	stuck.Ready, other.Ready = &Said{Change: 6}, &Said{Change: 6}
	if step := next(6, 60, 60); step != Rested {
		t.Error(step)
	}
	if step := next(7, 90, 61); step != Wait {
		t.Error(step)
	}
}

// Members that are no group yet cannot meet at a step.
func TestMeeting(t *testing.T) {
	at := member(4, 4)
	at.At = &Said{Step: 9}
	for _, tt := range []struct {
		name string
		host Host
		step int64
		all  bool
	}{
		{"all have said where they are", Host{0: at, 1: {}}, 9 + StepsAhead, true},
		{"one has not", Host{0: at, 1: member(4, 4)}, 9 + StepsAhead, false},
		{"one is not a member yet", Host{0: at, 1: member(4, 3)}, -1, true},
		{"none is left", Host{}, -1, true},
	} {
		if step, all := tt.host.Meeting(4); all != tt.all || all && step != tt.step {
			t.Errorf("%s: %d, %v", tt.name, step, all)
		}
	}
}

// A host takes a plan only if its workers are those that it is about.
func TestPlace(t *testing.T) {
	host := Host{0: member(4, 3), 1: {Heard: true, Ready: &Said{Handle: "n"}, Failed: &Said{}}}
	plan := &Plan{Handles: []string{"x", "h", "n"}, Steps: []int64{9, 9, 0}, Locals: [][]int{{0}, {0, 1}}}
	if _, lost := host.Place(&Plan{Handles: []string{"x", "h", "other"}, Locals: plan.Locals}, 1); lost != 1 || host[1].Member {
		t.Errorf("a plan with a worker that was replaced: %d is lost", lost)
	}
	ranks, lost := host.Place(plan, 1)
	if diff := cmp.Diff(map[int]int{0: 1, 1: 2}, ranks); lost >= 0 || diff != "" || !host[1].Member {
		t.Errorf("%d is lost, (-want +got):\n%s", lost, diff)
	}
	if all, _ := host.Taken(4, ranks); all {
		t.Error("all have taken part, it says")
	}
	host[1].Hear("failed", &Said{Change: 4, Error: "reset"})
	for range 2 { // the other one may wait for it
		if all, failed := host.Taken(4, ranks); !all || failed == nil {
			t.Errorf("taken: %v, %v", all, failed)
		}
		host[0].Hear("done", &Said{Change: 4})
	}
	if host.FailedMember(4) == nil || host.Joining() != 0 {
		t.Errorf("unrest: %v, %d join", host.FailedMember(4), host.Joining())
	}
}

// Who is not in the plan, since its replica group is not whole, waits: it joins once that is, and is
// no reason for a change before.
func TestWaits(t *testing.T) {
	host := Host{0: member(4, 3), 1: member(4, 3)}
	for _, x := range host {
		x.Size = 2
	}
	place := func(plan *Plan) {
		t.Helper()
		plan.Handles = []string{"h", "h", "h", "h"}
		if _, lost := host.Place(plan, 0); lost >= 0 {
			t.Fatal(lost)
		}
	}
	if part := host.Part(4); part.Size != 2 {
		t.Errorf("%+v, want a size of 2", part)
	}
	place(&Plan{UUID: 17, Locals: [][]int{{0, 1}}, Groups: [][]int{{0, 1}}})
	host[0].Ready, host[1].Gone = &Said{Change: 5, Handle: "h", Step: 11, Lineage: 17}, true
	if diff := cmp.Diff([]Member{{0, "h", 11, 17, 0, 1, 1, 17}}, host.Part(5).Members); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	place(&Plan{Locals: [][]int{{}, {0, 1}}, Groups: [][]int{{0, 1}}})
	if host.Joining() != 0 || host[0].Member {
		t.Errorf("%+v joins by itself", host[0])
	}
	host[1] = &Worker{Heard: true, Size: 2, Ready: &Said{Handle: "h"}}
	if host.Joining() != 1 {
		t.Errorf("%+v does not join", host[1])
	}
	if diff := cmp.Diff([]Member{{0, "h", 11, 17, 0, 1, 0, 17}, {1, "h", 0, 0, 0, 0, 0, 0}}, host.Part(6).Members); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		said  Said
		knows bool
	}{{Said{Lineage: 17}, true}, {Said{Lineage: 18}, false}, {Said{Lineage: -1}, false}, {Said{Next: 17}, true}, {Said{Next: 18}, false}, {Said{Next: -1}, false}} {
		if host[0].Knows(&tt.said) != tt.knows || host[1].Knows(&tt.said) {
			t.Errorf("%+v of one that was a member in 17 once, and of one that never was: %v, %v", tt.said, host[0].Knows(&tt.said), host[1].Knows(&tt.said))
		}
	}
	host[1].Size = 1
	if part := host.Part(5); part.Size != -1 {
		t.Errorf("%+v, want two sizes", part)
	}
}
