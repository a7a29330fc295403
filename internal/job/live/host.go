package live

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Said is what a worker says about a change; docs/internals/live.md has the messages.
type Said struct {
	Change  int    `json:"change"`
	Handle  string `json:"handle,omitempty"`
	Step    int64  `json:"step,omitempty"`
	Lineage int64  `json:"lineage,omitempty"` // of its state
	Next    int64  `json:"next,omitempty"`
	Error   string `json:"error,omitempty"`
	Size    int    `json:"replica_size,omitempty"`
}

// A Worker is what its agent knows of one worker process.
type Worker struct {
	Heard  bool // it has said hello
	Gone   bool // it has ended, or hung up
	Member bool // it was told of a membership
	Done   int  // the last change that it has completed; 0: none, or it waits

	Size           int   // of its replica group
	Place, Replica int   // its shard and its group, from 1; 0: it was in none, or waits since
	of             int64 // its last membership, in which that group has this number
	offered        bool  // in the last round

	asked int       // the first of the changes for which it has not paused
	due   time.Time // when it has to

	Ready, At, Failed *Said // the last of each
}

// Knows reports whether the worker was told of what it says of memberships.
func (x *Worker) Knows(m *Said) bool {
	return min(m.Lineage, m.Next) >= 0 && max(m.Lineage, m.Next) <= x.of
}

// Hear notes what the worker says.
func (x *Worker) Hear(kind string, m *Said) {
	switch kind {
	case "ready":
		x.Ready = m
	case "at":
		x.At = m
	case "done":
		x.Done = m.Change
	case "failed":
		x.Failed = m
	}
}

// Resting reports whether a worker is at rest for a change, and TookPart whether it has done, or
// could not do, what it had to for its membership.
func (x *Worker) Resting(change int) bool { return x.Ready != nil && x.Ready.Change == change }

func (x *Worker) TookPart(change int) bool { return x.Done == change || x.failed(change) }

func (x *Worker) failed(change int) bool { return x.Failed != nil && x.Failed.Change == change }

// Late reports whether the time is up in which a worker had to pause for a change.
func (x *Worker) Late(change int, now time.Time) bool {
	return !x.Resting(change) && !now.Before(x.due)
}

// disturbed reports whether a worker that is to pause in a change cannot do so by itself: a
// collective has failed, or it says unasked that it has gone past the step.
func (x *Worker) disturbed(change int) bool {
	return x.Failed != nil && x.Failed.Change < change || x.At != nil && x.At.Change == change
}

// A Host is one host's workers, by local rank: those that were started last.
type Host map[int]*Worker

// members are the workers of the last membership that are still there.
func (h Host) members(yield func(int, *Worker) bool) {
	for i, x := range h {
		if x.Member && !x.Gone && !yield(i, x) {
			return
		}
	}
}

// Settled reports whether no worker has still to start: all are ready, or have ended.
func (h Host) Settled() bool {
	for _, x := range h {
		if !x.Gone && x.Ready == nil || x.Gone && !x.Heard {
			return false
		}
	}
	return true
}

// Part is what the host says of its workers in a round, after a change.
func (h Host) Part(change int) Part {
	var part Part
	for _, i := range slices.Sorted(maps.Keys(h)) {
		x := h[i]
		x.offered = !x.Gone && x.Ready != nil && (!x.Member || x.Resting(change))
		switch {
		case x.Gone:
		case x.offered:
			part.Members = append(part.Members, Member{i, x.Ready.Handle, x.Ready.Step, x.Ready.Lineage, x.Ready.Next, x.Place, x.Replica, x.of})
			if part.Size == 0 {
				part.Size = x.Size
			} else if part.Size != x.Size {
				part.Size = -1
			}
		case !x.Member:
			part.Starting++
		}
	}
	return part
}

// StepsAhead is how many steps after the present one all workers pause.
const StepsAhead = 2

// Meeting is the step at which the members that a change has brought together can pause,
// and whether all have said where they are; -1 if they cannot, since not all are together yet.
func (h Host) Meeting(change int) (step int64, all bool) {
	step, all = -1, true
	for _, x := range h.members {
		switch {
		case x.Done != change:
			return -1, true
		case x.At == nil:
			all = false
		default:
			step = max(step, x.At.Step+StepsAhead)
		}
	}
	return step, all
}

// A Rest is how the members of a host pause.
type Rest struct {
	Change      int
	Until       time.Time // they have to by then, or earlier if they have not done so for the change before
	Others      bool      // those of another host rest, and wait, or could not pause by themselves
	began       time.Time // at the first Next
	first       time.Time // when one did, or could not by itself
	interrupted bool
}

// What Rest.Next says is to be done.
type RestStep int

const (
	Wait      RestStep = iota
	Interrupt          // those that have not paused are to do so at once
	Rested             // all do
	Kill               // some are late
)

// What an agent and its model in rendezvous/internal/simulate wait for, and how often they try, by default.
const (
	Timeout       = 30 * time.Second // for a worker to pause, or to take part in a new group
	PeerTimeout   = 2 * time.Second  // for the reason of a failure, from other hosts
	MostFruitless = 3                // changes without a loss that may follow each other
)

// InterruptAfter is how long workers may continue when the first of their host has paused, or all of
// another host have. Then they are interrupted.
const InterruptAfter = time.Second

// Next says what to do about members that pause; for Wait, until when at most.
func (r *Rest) Next(h Host, now time.Time) (step RestStep, until time.Time) {
	resting, waiting, disturbed, due := 0, 0, false, r.Until
	for _, x := range h.members {
		if x.Resting(r.Change) {
			resting++
		} else {
			waiting++
			if x.Ready != nil && x.Ready.Change >= x.asked {
				x.asked, x.due = r.Change, r.Until
			}
			if x.due.Before(due) {
				due = x.due
			}
		}
		disturbed = disturbed || x.disturbed(r.Change)
	}
	if r.first.IsZero() && (resting > 0 || disturbed) {
		r.first = now
	}
	if r.began.IsZero() {
		r.began = now
	}
	// they may be in a collective with a host that was lost without a word
	interrupt := r.began.Add(r.Until.Sub(r.began) / 2)
	if at := r.first.Add(InterruptAfter); !r.first.IsZero() && at.Before(interrupt) {
		interrupt = at
	}
	switch {
	case waiting == 0:
		return Rested, now
	case !now.Before(due):
		return Kill, now
	case r.interrupted:
		return Wait, due
	case disturbed || r.Others || !now.Before(interrupt):
		r.interrupted = true
		return Interrupt, now
	case interrupt.After(due):
		return Wait, due
	}
	return Wait, interrupt
}

// Place makes the workers of a plan members, and returns their ranks; lost is the local rank of
// one that has ended since the plan was made, or -1. Then no worker becomes a member. The others wait.
func (h Host) Place(plan *Plan, node int) (ranks map[int]int, lost int) {
	ranks = map[int]int{}
	base := plan.First(node)
	for i, local := range plan.Locals[node] {
		x := h[local]
		if x == nil || x.Ready == nil || x.Ready.Handle != plan.Handles[base+i] {
			return nil, local
		}
		ranks[local] = base + i
	}
	for local, x := range h {
		if _, has := ranks[local]; x.offered && !has {
			x.Member, x.Replica, x.Done = false, 0, 0
		}
	}
	for local, rank := range ranks {
		x := h[local]
		x.Member, x.Failed, x.of = true, nil, plan.UUID
		if replica, place := plan.seat(rank); place > 0 {
			x.Replica, x.Place = replica, place
		}
	}
	return ranks, -1
}

// Check says why a plan for so many nodes cannot be one.
func (p *Plan) Check(nodes int) error {
	if p.Inconsistent {
		return errors.New(p.Why)
	}
	members := 0
	for _, locals := range p.Locals {
		members += len(locals)
	}
	if p.Form || len(p.Locals) != nodes || members != len(p.Handles) || len(p.Steps) != members || members == 0 {
		return fmt.Errorf("the host with group rank 0 has planned %d nodes and %d workers (%d handles, %d steps) "+
			"for a round of %d nodes; run the same version of muster on all hosts",
			len(p.Locals), members, len(p.Handles), len(p.Steps), nodes)
	}
	return nil
}

// Taken reports whether the members in ranks have taken part in a change, or are gone; how many have taken part;
// and what one that failed says, for which the others are not waited for.
func (h Host) Taken(change int, ranks map[int]int) (all bool, took int, failed *Said) {
	all = true
	for local := range ranks {
		switch x := h[local]; {
		case x == nil:
		case !x.Gone && x.failed(change):
			return true, took, x.Failed
		case x.Done == change:
			took++
		case !x.Gone:
			all = false
		}
	}
	return all, took, nil
}

// FailedMember is what a member has said that failed, which is a reason for the next change.
func (h Host) FailedMember(change int) (failed *Said) {
	for _, x := range h.members {
		if x.failed(change) {
			failed = x.Failed
		}
	}
	return failed
}

// Joining is how many workers are ready to be members that the last round had not.
func (h Host) Joining() (n int) {
	for _, x := range h {
		if !x.Gone && !x.Member && x.Ready != nil && !x.offered {
			n++
		}
	}
	return n
}
