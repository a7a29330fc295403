package agent

import (
	"context"
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
// the rank of the first; nil without workers that can be asked. If all have ended, it is what they said before
// they were stopped or as they ended.
func (a *Agent) Courses(ctx context.Context) (courses map[int]slow.Course, base int) {
	p := &a.published
	p.mu.Lock()
	at, group, exits := p.at, p.group, p.exits
	p.mu.Unlock()
	if a.evidence.Witness == nil || group == nil {
		return nil, 0
	}
	pids := group.PIDs()
	ranks := slices.Sorted(maps.Keys(pids))
	courses = map[int]slow.Course{}
	for i, c := range parallel.Map(len(ranks), len(ranks), func(i int) slow.Course {
		var body []byte // without an answer there are no dumps
		if exits == nil {
			body, _ = a.evidence.Witness.Everything(ctx, pids[ranks[i]])
		} else {
			body, _, _ = at.evidence.Said(ranks[i], at.team.began)
		}
		dumps, _ := autopsy.Testimony(body)
		return slow.Read(dumps, at.rank(ranks[i]))
	}) {
		courses[ranks[i]] = c
	}
	return courses, at.team.ranks.Base
}
