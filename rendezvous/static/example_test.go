package static_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/static"
)

// The host with node rank 0 of a job with a fixed number of hosts, here one. Its workers meet
// at the endpoint in every round.
func Example() {
	h, err := static.New(rendezvous.Spec{
		RunID: "job7", Logger: slog.New(slog.DiscardHandler),
		Endpoint: "127.0.0.1:0", NodeRank: 0, MinNodes: 1, MaxNodes: 1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Shutdown(context.Background())
	port := 0
	for range 2 {
		round, err := h.Next(context.Background())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("round", round.Round, "node", round.Rank, "the same address:", port == 0 || round.MasterPort == port)
		port = round.MasterPort
	}
	// Output:
	// round 0 node 0 the same address: true
	// round 1 node 0 the same address: true
}
