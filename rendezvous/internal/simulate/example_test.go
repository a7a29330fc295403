package simulate_test

import (
	"fmt"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/simulate"
)

// A job of a thousand hosts, all there within a second of virtual time.
func Example() {
	r, err := simulate.Run(simulate.Config{
		Seed: 1, Nodes: 1000, Min: 1000, Max: 1000, Arrive: time.Second, Delay: 100 * time.Microsecond,
	})
	fmt.Println("rounds:", r.Rounds, "hosts:", r.FirstSize, "error:", err)
	fmt.Println("messages per host:", r.ToMeet.Messages/r.Nodes)
	// Output:
	// rounds: 1 hosts: 1000 error: <nil>
	// messages per host: 5
}
