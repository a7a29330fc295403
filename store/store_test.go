package store_test

import (
	"testing"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/storetest"
)

// repeat is one handle n times, for stores inside one process.
func repeat(s store.Store, n int) []store.Store {
	all := make([]store.Store, n)
	for i := range all {
		all[i] = s
	}
	return all
}

func TestMemory(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(t testing.TB, n int) []store.Store {
		return repeat(store.NewMemory(), n)
	}})
}

// underPrefix opens a store that also has keys and queues of others.
func underPrefix(open func(t testing.TB, n int) []store.Store) func(t testing.TB, n int) []store.Store {
	return func(t testing.TB, n int) []store.Store {
		all := open(t, n)
		for _, key := range []string{"k", "other/k", "pre", "pref/k"} {
			if err := all[0].Set(t.Context(), key, []byte("other")); err != nil {
				t.Fatal(err)
			}
			if err := all[0].QueuePush(t.Context(), key, []byte("other")); err != nil {
				t.Fatal(err)
			}
		}
		for i := range all {
			all[i] = store.Prefix("outer", store.Prefix("pre", all[i]))
		}
		return all
	}
}

func TestPrefixOfMemory(t *testing.T) {
	storetest.Run(t, storetest.Subject{Shared: true, Open: underPrefix(func(t testing.TB, n int) []store.Store {
		return repeat(store.NewMemory(), n)
	})})
}

// Source: PrefixStore in the vectors: PrefixStore("a", PrefixStore("b", s)).
func TestPrefixNesting(t *testing.T) {
	ctx := t.Context()
	s := store.NewMemory()
	if err := store.Prefix("a", store.Prefix("b", s)).Set(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	if err := store.Prefix("", s).Set(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	all, err := s.Check(ctx, "b/a/k", "/k")
	if err != nil || !all {
		keys, _ := s.ListKeys(ctx)
		t.Errorf("keys are %q, want b/a/k and /k; %v", keys, err)
	}
}
