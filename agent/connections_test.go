package agent

import (
	"testing"

	"github.com/muster-run/muster/rendezvous"
)

// With a store on each host, the workers of other hosts have no connections to this one's.
func TestConnections(t *testing.T) {
	for local, want := range map[bool]int{false: 240 + 8, true: 16} {
		if got := connections(&rendezvous.Info{WorldSize: 4, LocalStore: local}, 241, 1); got != want {
			t.Errorf("local %v: %d connections, want %d", local, got, want)
		}
	}
}
