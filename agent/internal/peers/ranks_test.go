package peers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

func nums(base, world, roleBase, roleWorld int) rendezvous.Ranks {
	return rendezvous.Ranks{Base: base, WorldSize: world, RoleBase: roleBase, RoleWorldSize: roleWorld}
}

// over are the agents of a round with a store.
func over(s store.Store, rank, size int) *Round {
	return &Round{Info: &rendezvous.Info{Store: s, Rank: rank, WorldSize: size}}
}

// Source: SimpleElasticAgent._assign_worker_ranks.
func TestAssign(t *testing.T) {
	tests := []struct {
		name  string
		infos []roleInfo
		want  []rendezvous.Ranks
	}{
		{"one node", []roleInfo{{"a", 0, 4}}, []rendezvous.Ranks{nums(0, 4, 0, 4)}},
		{"two nodes of different size", []roleInfo{{"a", 0, 2}, {"a", 1, 1}}, []rendezvous.Ranks{nums(0, 3, 0, 3), nums(2, 3, 2, 3)}},
		{"two roles", []roleInfo{{"a", 0, 2}, {"b", 1, 3}, {"a", 2, 1}},
			[]rendezvous.Ranks{nums(0, 6, 0, 3), nums(2, 6, 0, 3), nums(5, 6, 2, 3)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, assign(tt.infos)); diff != "" {
				t.Errorf("assign (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExchangeRanks(t *testing.T) {
	s := store.NewMemory()
	got := make([]rendezvous.Ranks, 3)
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for i, size := range []int{2, 1, 3} {
		wg.Go(func() { got[i], errs[i] = over(s, i, 3).Exchange(t.Context(), "trainer", size) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("agent %d: %v", i, err)
		}
	}
	want := []rendezvous.Ranks{nums(0, 6, 0, 6), nums(2, 6, 2, 6), nums(3, 6, 3, 6)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Exchange (-want +got):\n%s", diff)
	}
	// What a Python agent reads, spelt as Python spells it.
	// Source: spec/rendezvous.md A.6.
	text, err := s.Get(t.Context(), "torchelastic/assigned_ranks/1")
	if err != nil || string(text) != "[2, 6, 2, 6]" {
		t.Errorf("assigned_ranks/1 = %q, %v, want [2, 6, 2, 6]", text, err)
	}
}

func TestExchangeRanksRefusesNonsense(t *testing.T) {
	for _, text := range []string{"", "{", `{"role": "a", "rank": 1, "local_world_size": 0}`,
		`{"role": "a", "rank": 1, "local_world_size": 2147483648}`, `{"role": "a", "rank": 1, "local_world_size": 9223372036854775807}`, "[1]"} {
		s := store.NewMemory()
		if err := s.Set(context.Background(), "torchelastic/role_info/1", []byte(text)); err != nil {
			t.Fatal(err)
		}
		_, err := over(s, 0, 2).Exchange(t.Context(), "a", 1)
		if err == nil || !strings.Contains(err.Error(), "role_info/1") {
			t.Errorf("role info %q: error %v, want one that names the key", text, err)
		}
	}
}

// Ranks that this node cannot have are an answer of nobody who can be believed.
func TestExchangeRanksRefusesItsRanks(t *testing.T) {
	for _, text := range []string{"[1, 2, 3]", "[-1, 2, 0, 2]", "[1, 2, 0, 2]", "[0, 2, 1, 2]", "[0, 2, -1, 2]", "[9223372036854775807, 2, 0, 2]"} {
		s := store.NewMemory()
		if err := s.Set(context.Background(), "torchelastic/assigned_ranks/1", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if r, err := over(s, 1, 2).Exchange(t.Context(), "a", 2); err == nil || !strings.Contains(err.Error(), "assigned_ranks/1") {
			t.Errorf("%s: %+v, error %v, want one that names the key", text, r, err)
		}
	}
}

func TestIdenticalRanks(t *testing.T) {
	if got, want := over(nil, 2, 3).Identical(4), nums(8, 12, 8, 12); got != want {
		t.Errorf("Identical(4) = %+v, want %+v", got, want)
	}
}

// An exchange that does not come about names the node that is missing.
func TestExchangeRanksNamesTheSilent(t *testing.T) {
	info := func(s store.Store, rank int) {
		text := fmt.Sprintf(`{"role": "a", "rank": %d, "local_world_size": 1}`, rank)
		if err := s.Set(context.Background(), fmt.Sprint("torchelastic/role_info/", rank), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name             string
		rank, size, said int // nodes 0 … said-1 have said who they are
		want             string
	}{
		{"seen by node 0", 0, 3, 2, "nothing was heard from node 2"},
		{"seen by another", 1, 4, 1, "nothing was heard from node 2, 3"},
		{"node 0", 1, 2, 0, "nothing was heard from node 0"},
		{"node 0 does not answer", 1, 2, 2, "node 0 has not answered"},
		{"many", 0, 100, 50, "nothing was heard from nodes 50, 51, 52, 53, 54, 55, 56, 57 and more"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := store.NewMemory()
				for i := range tt.said {
					info(s, i)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := over(s, tt.rank, tt.size).Exchange(ctx, "a", 1)
				if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
			})
		})
	}
}

// Nor does group rank 0 wait for ever where its own store would.
func TestExchangeRanksEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := over(store.NewMemory(), 0, 2).Exchange(t.Context(), "a", 1)
		if err == nil || !strings.Contains(err.Error(), "nothing was heard from node 1") {
			t.Errorf("error %v, want one that names node 1", err)
		}
	})
}

// Who is told to stop while ranks are exchanged need not ask who is missing.
func TestExchangeRanksStopped(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := over(store.NewMemory(), 0, 2).Exchange(ctx, "a", 1); err != stop {
		t.Errorf("error %v, want %v alone", err, stop)
	}
}
