package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// What Next returns where there is no round.
func ExampleHandler_errors() {
	h, err := c10d.New(rendezvous.Spec{
		RunID: "job7", Endpoint: "127.0.0.1:1", MinNodes: 2, MaxNodes: 2, LocalWorldSize: 1,
		Settings: rendezvous.Settings{Join: 200 * time.Millisecond, Connect: 100 * time.Millisecond, IsHost: new(bool)},
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = h.Next(context.Background())
	fmt.Println(explain(err))
	_ = h.Leave(context.Background())
	fmt.Println(explain(&rendezvous.TimeoutError{RunID: "job7", Phase: "join"}))
	fmt.Println(explain(&rendezvous.EndedError{Outcome: rendezvous.Outcome{Result: rendezvous.JobSucceeded}, Err: rendezvous.ErrClosed}))
	// Output:
	// the store at 127.0.0.1:1 cannot be reached
	// too few nodes have come: join
	// the job has ended: succeeded
}

func explain(err error) string {
	if e, ok := errors.AsType[*rendezvous.ConnectionError](err); ok {
		return "the store at " + e.Endpoint + " cannot be reached"
	}
	if e, ok := errors.AsType[*rendezvous.TimeoutError](err); ok {
		return "too few nodes have come: " + e.Phase
	}
	if e, ok := errors.AsType[*rendezvous.EndedError](err); ok {
		return "the job has ended: " + string(e.Result)
	}
	return fmt.Sprint(err)
}
