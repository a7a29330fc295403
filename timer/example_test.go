package timer_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/muster-run/muster/timer"
)

// A server that only reports: the timer's signal is 0. Deadlines are times of the
// wall clock; this one has passed.
func ExampleServer() {
	server, err := timer.NewServer(timer.Config{
		Reap: func(_ context.Context, e *timer.Expiry) error { return e.Kill() },
		OnExpiry: func(r timer.Request, killed bool) {
			fmt.Println("timer expired:", r.ScopeID, killed)
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = server.Register([]timer.Request{
		{PID: os.Getpid(), ScopeID: "step 7", ExpirationTime: time.Unix(1.5e9, 0)},
		{PID: os.Getpid(), ScopeID: "epoch 2", ExpirationTime: time.Unix(1e10, 0)},
	})
	server.Settle()
	fmt.Println(server.Stats().Expired, err, server.Close())
	// Output:
	// timer expired: step 7 false
	// 1 <nil> <nil>
}
