package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// Two nodes meet: each has a handler, and Next tells each its rank in the round. They would
// be agents on two hosts; here they are of one process.
func ExampleHandler() {
	settings, err := rendezvous.ParseSettings("c10d", map[string]string{"join_timeout": "60", "last_call_timeout": "1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // finds a free port
	if err != nil {
		fmt.Println(err)
		return
	}
	l.Close()
	ctx := context.Background()
	var nodes sync.WaitGroup
	for range 2 {
		h, err := c10d.New(rendezvous.Spec{
			RunID: "job7", Endpoint: l.Addr().String(), MinNodes: 2, MaxNodes: 2, LocalWorldSize: 1, Settings: settings,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		nodes.Go(func() {
			var round *rendezvous.Info
			round, err := h.Next(ctx)
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("node", round.Rank, "of", round.WorldSize)
			if err := h.Shutdown(ctx); err != nil && !errors.Is(err, rendezvous.ErrClosed) {
				fmt.Println(err)
			}
		})
	}
	nodes.Wait()
	// Unordered output:
	// node 0 of 2
	// node 1 of 2
}

// Every bad value is reported at once, and unknown keys come back for a warning.
func ExampleParseSettings() {
	settings, err := rendezvous.ParseSettings("c10d", map[string]string{"join_timeout": "90", "jion_timeout": "60"})
	fmt.Println(settings.Join, settings.Unknown, err)
	// Output: 1m30s map[jion_timeout:join_timeout] <nil>
}
