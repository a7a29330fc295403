package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// Keys of the agents' store. Source: SimpleElasticAgent in
// elastic/agent/server/api.py.
const (
	roleInfoPrefix      = "torchelastic/role_info/"
	assignedRanksPrefix = "torchelastic/assigned_ranks/"
	exitBarrierKey      = "torchelastic/agent/terminal_state"
)

// roleInfo is what each agent tells group rank 0.
type roleInfo struct {
	Role           string `json:"role"`
	Rank           int    `json:"rank"`
	LocalWorldSize int    `json:"local_world_size"`
}

// assign gives every agent its ranks: base ranks are running sums of the local
// world sizes in order of group rank, role ranks the same over equal roles.
func assign(infos []roleInfo) []rendezvous.Ranks {
	out := make([]rendezvous.Ranks, len(infos))
	world, roleWorld := 0, map[string]int{}
	for i, info := range infos {
		out[i].Base, out[i].RoleBase = world, roleWorld[info.Role]
		world += info.LocalWorldSize
		roleWorld[info.Role] += info.LocalWorldSize
	}
	for i, info := range infos {
		out[i].WorldSize, out[i].RoleWorldSize = world, roleWorld[info.Role]
	}
	return out
}

// Alone assigns the ranks of a round of one node.
func Alone(role string, localSize int) rendezvous.Ranks {
	return assign([]roleInfo{{role, 0, localSize}})[0]
}

// gatherLimit is the time limit of a store of TorchElastic's static agents.
const gatherLimit = 15 * time.Minute

// Exchange assigns ranks through the store of a round. Group rank 0
// gathers what every agent says of itself and writes each one's answer. It waits
// as long as the store lets it, group rank 0 for gatherLimit at most; the error says for which node. Nobody is
// answered before all have spoken: a base rank is the sum of the workers before it, and every answer has that of all.
func (r *Round) Exchange(ctx context.Context, role string, localSize int) (ranks rendezvous.Ranks, err error) {
	s, groupRank, groupSize := r.Store, r.Rank, r.WorldSize
	mine, err := json.Marshal(roleInfo{Role: role, Rank: groupRank, LocalWorldSize: localSize})
	if err != nil {
		return ranks, err
	}
	if err := s.Set(ctx, fmt.Sprint(roleInfoPrefix, groupRank), mine); err != nil {
		return ranks, err
	}
	if groupRank == 0 {
		soon, cancel := context.WithTimeout(ctx, gatherLimit) // its own store waits for ever
		defer cancel()
		if err := answerRanks(soon, s, groupSize); err != nil {
			return ranks, err
		}
	}
	key := fmt.Sprint(assignedRanksPrefix, groupRank)
	text, err := s.Get(ctx, key)
	if err != nil {
		return ranks, silentNodes(ctx, s, groupSize, err)
	}
	// fits reports whether a node can have its workers from base on, in a world of size.
	fits := func(base, size int) bool { return 0 <= base && base <= size-localSize }
	var list []int
	if err := Decode(key, text, 200, 4, &list); err != nil || len(list) != 4 || !fits(list[0], list[1]) ||
		!fits(list[2], list[3]) {
		return ranks, fmt.Errorf("%s holds %.100q, want a list of four numbers, the ranks of this node", key, text)
	}
	return rendezvous.Ranks{Base: list[0], WorldSize: list[1], RoleBase: list[2], RoleWorldSize: list[3]}, nil
}

func answerRanks(ctx context.Context, s store.Store, groupSize int) error {
	keys := make([]string, groupSize)
	for i := range keys {
		keys[i] = fmt.Sprint(roleInfoPrefix, i)
	}
	texts, err := s.MultiGet(ctx, keys)
	if err != nil {
		return silentNodes(ctx, s, groupSize, err)
	}
	infos := make([]roleInfo, groupSize)
	for i, text := range texts {
		if err := json.Unmarshal(text, &infos[i]); err != nil || infos[i].LocalWorldSize < 1 ||
			infos[i].LocalWorldSize > math.MaxInt32 {
			return fmt.Errorf("%s holds %.100q, want an agent's role, rank and local world size", keys[i], text)
		}
	}
	values := make([][]byte, groupSize)
	for i, r := range assign(infos) {
		keys[i] = fmt.Sprint(assignedRanksPrefix, i)
		values[i] = fmt.Appendf(nil, "[%d, %d, %d, %d]", r.Base, r.WorldSize, r.RoleBase, r.RoleWorldSize)
	}
	return s.MultiSet(ctx, keys, values)
}

// silentNodes adds to the error of a wait the nodes that were waited for.
func silentNodes(ctx context.Context, s store.Store, groupSize int, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return err // the caller gave up, so nobody has to be named
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var silent []string
	ranks, more := lacking(ctx, s, roleInfoPrefix, groupSize)
	for _, rank := range ranks {
		silent = append(silent, strconv.Itoa(rank))
	}
	switch {
	case more:
		return fmt.Errorf(
			"nothing was heard from nodes %s and more (%s<group rank>); did their agents die, or can they not reach the store? %w",
			strings.Join(silent, ", "), roleInfoPrefix, err)
	case len(silent) > 0:
		return fmt.Errorf(
			"nothing was heard from node %s (%s<group rank>); did its agent die, or can it not reach the store? %w",
			strings.Join(silent, ", "), roleInfoPrefix, err)
	}
	if ok, cerr := s.Check(ctx, fmt.Sprint(roleInfoPrefix, 0)); cerr == nil && ok {
		return fmt.Errorf(
			"node 0 has not answered (%s<group rank>), though all nodes have announced what they run; did its agent die? %w",
			assignedRanksPrefix, err)
	}
	return err
}

// lacking returns the group ranks of nodes that have not set their key, the first 8, and
// whether there are more.
func lacking(ctx context.Context, s store.Store, prefix string, groupSize int) (ranks []int, more bool) {
	for i := range groupSize {
		there, err := s.Check(ctx, fmt.Sprint(prefix, i))
		if err != nil {
			break
		}
		if there {
			continue
		}
		if len(ranks) == 8 {
			return ranks, true
		}
		ranks = append(ranks, i)
	}
	return ranks, false
}

// Identical assigns ranks without the store, for agents that all have the
// same local world size and role (TORCH_ELASTIC_WORKER_IDENTICAL).
func (r *Round) Identical(localSize int) rendezvous.Ranks {
	base, size := r.Rank*localSize, r.WorldSize*localSize
	return rendezvous.Ranks{Base: base, WorldSize: size, RoleBase: base, RoleWorldSize: size}
}
