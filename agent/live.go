package agent

import (
	"cmp"
	"context"
	"maps"
	"syscall"

	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/process"
)

// How a job continues when workers or hosts are lost, or come (docs/internals/live.md):
//
//  1. An agent that loses a worker, or hears that a host is lost, keeps its other workers and
//     meets the other agents in a new round, as for a restart (continueInNewRound). The workers pause.
//     Whether that is the answer is decided where everything is: decide.Next.
//  2. In the round each agent says which workers it has at livePartPrefix and its group rank.
//     The agent with group rank 0 makes the list of all (lead), at livePlanKey.
//  3. Each agent hands it to its workers, which then reconfigure their process group (form).
//  4. Workers that start come in by another round once they are ready: who wants one sets
//     liveJoinKey, and the agent that has rank 0 asks for it, with the step at which all
//     pause. It does so once the workers of all agents are members, as the agents say
//     at liveMembersPrefix; workers that still reconfigure could only pause at once.
//  5. Workers that have no place in the membership, since their replica group is not whole,
//     wait until it is.
//
// The training ends when a worker says so, which it does when all have completed the last step.
// Then liveOverKey is set: no worker joins after that, and workers that are starting are stopped.
//
// An agent that cannot complete one of these steps ends its workers. That counts as a failure:
// the group restarts.

const (
	livePartPrefix = "muster/live/"
	liveFormPrefix = "muster/live/form/"
	livePlanKey    = "muster/live/plan"
	liveJoinKey    = "muster/live/join"
	liveReadyKey   = "muster/live/ready" // how many workers are ready to join
	liveOverKey    = "muster/live/over"
	liveUrgentKey  = "muster/live/urge" // a host, for which the others are to pause at once

	liveMembersPrefix = "muster/live/together/"
)

// DefaultLiveTimeout is how long a worker may take to pause, or to take part in a new
// membership.
const DefaultLiveTimeout = live.Timeout

const (
	// maxPart bounds what an agent, and maxPlan what the plan says, in bytes; maxMembers the workers
	// of a host, and maxListed the elements of all lists of a plan.
	maxMembers = 4096
	maxPart    = 8 << 20
	maxPlan    = 64 << 20
	maxListed  = 1 << 22
)

// kept is the workers of an attempt that has ended without them.
type kept struct {
	team
	lost     map[int]process.Exit // workers that have failed, by local rank
	restarts int                  // that were counted before; the record of the loss counts one, too
}

// hostJoins is why members change where a host waits.
const hostJoins = "a host joins"

// pauseWorkers begins a change of this host's members.
func (a *Agent) pauseWorkers(m *link.Message) {
	a.live.Look(func(s *link.State) {
		s.Change++
		m.Change = s.Change
	})
	a.live.Send(a.live.Members(), func(int) *link.Message { return m })
}

// stopAsSpare ends the workers of a host for which the round has no place, once they have paused: those
// of the others finish their step with them. Later it begins anew.
func (a *Agent) stopAsSpare(ctx context.Context) {
	if k := a.kept; k != nil {
		a.log.Warn("live: this host waits as a spare; its workers are stopped", "run_id", a.cfg.Rendezvous.RunID())
		at := a.newAttempt(ctx)
		at.team = k.team
		_ = at.live.awaitRest(at.run.life, a.live.LastChange()) // if ctx has ended they are stopped at once
		at.close()
		a.dropKept(ctx)
	}
	a.carried = nil
}

// dropKept stops workers that were kept, if there is no round for them.
func (a *Agent) dropKept(ctx context.Context) {
	k := a.kept
	if k == nil {
		return
	}
	a.kept = nil
	closed := make(chan struct{})
	go func() {
		select {
		case <-a.cfg.Hurry:
			k.group.Kill()
		case <-closed:
		}
	}()
	k.group.Close(syscall.SIGTERM, a.cfg.ShutdownTimeout)
	close(closed)
	if res, err := k.group.Wait(context.WithoutCancel(ctx)); err == nil {
		a.published.ended(res.Exits)
	}
	(&runner{a, &attempt{team: k.team}}).finishLogs(ctx)
}

// rank is that of a worker of this host.
func (at *attempt) rank(localRank int) int {
	if f := cmp.Or(at.live.formed.Load(), at.live.broken.Load()); f != nil {
		if rank, ok := f.ranks[localRank]; ok {
			return rank
		}
	}
	return at.team.ranks.Base + localRank
}

// paid is how many restarts have been counted for a failure before it: a worker was lost, and then
// the others could not continue.
func (at *attempt) paid() int {
	if b := at.live.broken.Load(); b != nil && b.paid {
		return 1
	}
	return 0
}

// exclude has a worker's end be no failure.
func (at *attempt) exclude(x process.Exit) {
	at.live.mu.Lock()
	defer at.live.mu.Unlock()
	if _, known := at.live.excluded[x.LocalRank]; !known {
		at.live.excluded[x.LocalRank] = x
	}
}

// withoutExcluded leaves out of a result the workers without which the others have continued.
func (at *attempt) withoutExcluded(res *process.Result) *process.Result {
	at.live.mu.Lock()
	defer at.live.mu.Unlock()
	if len(at.live.excluded) == 0 {
		return res
	}
	r := *res
	r.Exits, r.Failures = maps.Clone(res.Exits), maps.Clone(res.Failures)
	for i := range at.live.excluded {
		delete(r.Exits, i)
		delete(r.Failures, i)
	}
	return &r
}
