package node

import (
	"fmt"
	"testing"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// Jobs whose agents' keys are in one store, as that of a muster store, share none of them, whatever their run IDs.
func TestJobsShareNoKey(t *testing.T) {
	agents := store.NewMemory()
	stores := map[string]store.Store{}
	for _, runID := range []string{"x", "x.2", "x.2.3", "x/2", "x/0", "x%2F2"} {
		n := &Node{cfg: rendezvous.Spec{RunID: runID}, link: link{agents: agents}}
		for number := range 4 {
			stores[fmt.Sprintf("job %s %d", runID, number)] = n.jobStore(number)
			stores[fmt.Sprintf("round %s %d", runID, number)] = n.roundStore(number)
		}
	}
	for name, s := range stores {
		if err := s.Set(t.Context(), "restarts", []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, s := range stores {
		if got, err := s.Get(t.Context(), "restarts"); err != nil || string(got) != name {
			t.Errorf("restarts of %s are those of %s (%v)", name, got, err)
		}
	}
}
