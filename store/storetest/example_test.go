package storetest_test

import (
	"testing"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/storetest"
)

// A test of a store of one's own: "func TestStore(t *testing.T)" in its package. Here it is of
// the store in memory, which is its own handle for every client.
func ExampleRun() {
	var t *testing.T // the test's
	storetest.Run(t, storetest.Subject{Open: func(_ testing.TB, n int) []store.Store {
		shared, handles := store.NewMemory(), make([]store.Store, n)
		for i := range handles {
			handles[i] = shared
		}
		return handles
	}})
}
