package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/muster-run/muster/store"
)

// ranks are the numbers of this host's first worker and the sizes of the job.
// Worker i has each base plus i.
type ranks struct {
	base, world         int
	roleBase, roleWorld int
}

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
func assign(infos []roleInfo) []ranks {
	out := make([]ranks, len(infos))
	world, roleWorld := 0, map[string]int{}
	for i, info := range infos {
		out[i].base, out[i].roleBase = world, roleWorld[info.Role]
		world += info.LocalWorldSize
		roleWorld[info.Role] += info.LocalWorldSize
	}
	for i, info := range infos {
		out[i].world, out[i].roleWorld = world, roleWorld[info.Role]
	}
	return out
}

// exchangeRanks assigns ranks through the store of a round. Group rank 0
// gathers what every agent says of itself and writes each one's answer.
func exchangeRanks(ctx context.Context, s store.Store, groupRank, groupSize int, role string, localSize int) (ranks, error) {
	mine, err := json.Marshal(roleInfo{Role: role, Rank: groupRank, LocalWorldSize: localSize})
	if err != nil {
		return ranks{}, err
	}
	if err := s.Set(ctx, fmt.Sprint(roleInfoPrefix, groupRank), mine); err != nil {
		return ranks{}, err
	}
	if groupRank == 0 {
		if err := answerRanks(ctx, s, groupSize); err != nil {
			return ranks{}, err
		}
	}
	key := fmt.Sprint(assignedRanksPrefix, groupRank)
	text, err := s.Get(ctx, key)
	if err != nil {
		return ranks{}, err
	}
	var list []int
	if err := json.Unmarshal(text, &list); err != nil || len(list) != 4 {
		return ranks{}, fmt.Errorf("%s holds %.100q, want a list of four numbers", key, text)
	}
	return ranks{base: list[0], world: list[1], roleBase: list[2], roleWorld: list[3]}, nil
}

func answerRanks(ctx context.Context, s store.Store, groupSize int) error {
	keys := make([]string, groupSize)
	for i := range keys {
		keys[i] = fmt.Sprint(roleInfoPrefix, i)
	}
	texts, err := s.MultiGet(ctx, keys)
	if err != nil {
		return err
	}
	infos := make([]roleInfo, groupSize)
	for i, text := range texts {
		if err := json.Unmarshal(text, &infos[i]); err != nil || infos[i].LocalWorldSize < 1 {
			return fmt.Errorf("%s holds %.100q, want an agent's role, rank and local world size", keys[i], text)
		}
	}
	values := make([][]byte, groupSize)
	for i, r := range assign(infos) {
		keys[i] = fmt.Sprint(assignedRanksPrefix, i)
		values[i] = fmt.Appendf(nil, "[%d, %d, %d, %d]", r.base, r.world, r.roleBase, r.roleWorld)
	}
	return s.MultiSet(ctx, keys, values)
}

// identicalRanks assigns ranks without the store, for agents that all have the
// same local world size and role (TORCH_ELASTIC_WORKER_IDENTICAL).
func identicalRanks(groupRank, groupSize, localSize int) ranks {
	r := ranks{base: groupRank * localSize, world: groupSize * localSize}
	r.roleBase, r.roleWorld = r.base, r.world
	return r
}
