package agent

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/job/slow"
	"github.com/muster-run/muster/internal/wait/parallel"
)

// Answers is closed once a worker of this host has imported torch.distributed, so that its flight recorder can be
// asked for.
func (a *Agent) Answers() <-chan struct{} { return a.evidence.Answers }

// Courses returns what the flight recorders of this host's workers tell of their course, by local rank, and
// the rank of the first; nil without workers that can be asked.
func (a *Agent) Courses(ctx context.Context) (courses map[int]slow.Course, base int) {
	p := &a.published
	p.mu.Lock()
	at, group := p.at, p.group
	p.mu.Unlock()
	if a.evidence.Witness == nil || group == nil {
		return nil, 0
	}
	pids := group.PIDs()
	return at.courses(maps.Keys(pids), func(localRank int) []byte {
		body, _ := a.evidence.Witness.Everything(ctx, pids[localRank]) // without an answer there are no dumps
		return body
	}), at.team.ranks.Base
}

// LastCourses is Courses of the workers of an attempt that has ended, by what they said before they were stopped or as
// they ended; without those that said nothing.
func (a *Agent) LastCourses() map[int]slow.Course {
	p := &a.published
	p.mu.Lock()
	at, exits := p.at, p.exits
	p.mu.Unlock()
	said := map[int][]byte{}
	for i := range exits {
		if body, _, _ := at.evidence.Said(i, at.team.began); body != nil {
			said[i] = body
		}
	}
	return at.courses(maps.Keys(said), func(localRank int) []byte { return said[localRank] })
}

// courses are what workers say, by local rank.
func (at *attempt) courses(workers iter.Seq[int], say func(localRank int) []byte) map[int]slow.Course {
	ranks, courses := slices.Sorted(workers), map[int]slow.Course{}
	for i, c := range parallel.Map(len(ranks), len(ranks), func(i int) slow.Course {
		dumps, _ := autopsy.Testimony(say(ranks[i]))
		return slow.Read(dumps, at.rank(ranks[i]))
	}) {
		courses[ranks[i]] = c
	}
	return courses
}
