package peers

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-run/muster/store"
)

// Keys of the exit barrier, as store.Barrier has them.
// Source: store_util.barrier in elastic/utils/store.py.
const (
	barrierCount = exitBarrierKey + "/num_members"
	barrierLast  = exitBarrierKey + "/last_member"
)

// PassBarrier meets the agents of all nodes, ours and torch's, and waits for them. A node
// counts itself before it says that it is done, so a node that is done and then lost is not
// waited for.
func (r *Round) PassBarrier(ctx context.Context) error {
	s := r.Store
	arrived, err := s.Add(ctx, barrierCount, 1)
	if err != nil {
		return err
	}
	if arrived >= int64(r.WorldSize) {
		return s.Set(ctx, barrierLast, []byte("1"))
	}
	if err := s.Set(ctx, fmt.Sprint(donePrefix, r.Rank), []byte("1")); err != nil {
		return err
	}
	for {
		err := s.Wait(ctx, barrierLast)
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrTimeout) {
			return err
		}
	}
}

// CountGone counts a node that is gone at the barrier, unless it or somebody else has done so. The first agent
// at excusedPrefix does it, or one node would be counted for each agent that sees it go. One that has died between
// the two steps of PassBarrier is counted twice, and the others may pass before the last of them is there: their
// training has ended, and with the steps the other way round they would wait until the barrier's timeout.
func (r *Round) CountGone(ctx context.Context, groupRank int) error {
	s := r.Store
	if nth, err := s.Add(ctx, fmt.Sprint(excusedPrefix, groupRank), 1); err != nil || nth > 1 {
		return err
	}
	if done, err := s.Check(ctx, fmt.Sprint(donePrefix, groupRank)); err != nil || done {
		return err
	}
	arrived, err := s.Add(ctx, barrierCount, 1)
	if err == nil && arrived >= int64(r.WorldSize) {
		err = s.Set(ctx, barrierLast, []byte("1"))
	}
	return err
}

// IsDone reports whether the workers of a node had succeeded. A torch agent does not say so, and
// sends no keep-alives at the barrier. It may be there if more agents are counted there than
// have said that they are done.
func (r *Round) IsDone(ctx context.Context, groupRank int) bool {
	s := r.Store
	if done, err := s.Check(ctx, fmt.Sprint(donePrefix, groupRank)); err != nil || done {
		return done
	}
	if ours, err := s.Check(ctx, fmt.Sprint(agentPrefix, groupRank)); err != nil || ours {
		return false
	}
	arrived, err := s.Add(ctx, barrierCount, 0)
	for i := 0; i < r.WorldSize && arrived > 0 && err == nil; i++ {
		var done bool
		if done, err = s.Check(ctx, fmt.Sprint(donePrefix, i)); done {
			arrived--
		}
	}
	return err == nil && arrived > 0
}

// AtBarrier returns how many nodes are counted at the exit barrier.
func (r *Round) AtBarrier(ctx context.Context) (int64, error) {
	return r.Store.Add(ctx, barrierCount, 0)
}

// Missing names the nodes that have not reached the exit barrier, as far as they
// say.
func (r *Round) Missing(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	ranks, more := lacking(ctx, r.Store, donePrefix, r.WorldSize)
	var names []string
	for _, rank := range ranks {
		if rank != r.Rank {
			names = append(names, r.NodeName(ctx, rank))
		}
	}
	if more {
		names = append(names, "and others")
	}
	return names
}

// NodeName is what is known of a node: "host2 (node 1)".
func (r *Round) NodeName(ctx context.Context, groupRank int) string {
	host, _ := r.HostOf(ctx, groupRank)
	if host == "" {
		return fmt.Sprintf("node %d", groupRank)
	}
	return fmt.Sprintf("%s (node %d)", host, groupRank)
}
