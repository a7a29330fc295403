package c10d_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// A job of this host alone: port 0 means that nobody else can come.
func Example() {
	h, err := c10d.New(rendezvous.Spec{
		RunID: "job7", Logger: slog.New(slog.DiscardHandler),
		Endpoint: "localhost:0",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Shutdown(context.Background())
	for range 2 {
		round, err := h.Next(context.Background())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("round", round.Round, "node", round.Rank, "of", round.WorldSize, "at", round.MasterAddr)
	}
	// Output:
	// round 0 node 0 of 1 at 127.0.0.1
	// round 1 node 0 of 1 at 127.0.0.1
}
