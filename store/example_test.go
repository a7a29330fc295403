package store_test

import (
	"context"
	"fmt"

	"github.com/muster-run/muster/store"
)

// Two parts of a program that share a store, each with a name space of its own.
func Example() {
	ctx := context.Background()
	shared := store.NewMemory()
	a, b := store.Prefix("a", shared), store.Prefix("b", shared)

	if err := a.Set(ctx, "greeting", []byte("hello")); err != nil {
		fmt.Println(err)
	}
	there, _ := b.Check(ctx, "greeting")
	text, err := a.Get(ctx, "greeting") // waits for a key that is not there
	n, _ := a.Add(ctx, "count", 2)
	fmt.Println(there, string(text), err, n)
	// Output: false hello <nil> 2
}

func ExampleBarrier() {
	ctx := context.Background()
	s := store.NewMemory()
	done := make(chan string)
	for _, name := range []string{"a", "b", "c"} {
		go func() {
			_ = store.Barrier(ctx, store.Prefix("job", s), "start", 3)
			done <- name
		}()
	}
	for range 3 {
		<-done
	}
	keys, _ := s.NumKeys(ctx)
	fmt.Println(keys, "keys")
	// Output: 2 keys
}
