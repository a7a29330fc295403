package timer_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/muster-run/muster/timer"
)

// A program that watches over itself: what it does not finish in time is reported,
// and could be dumped, before anything is killed.
func ExampleLocalQueue() {
	late := make(chan string)
	server, err := timer.NewServer(timer.Config{
		Owns: func(pid int) bool { return pid == os.Getpid() },
		Reap: func(_ context.Context, e *timer.Expiry) error {
			late <- e.Timers[0].ScopeID // and not e.Kill()
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	var queue timer.LocalQueue
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Run(ctx) })
	wg.Go(func() { queue.Serve(ctx, server) })
	defer wg.Wait()
	defer stop()

	client := &timer.LocalClient{Queue: &queue}
	release, err := timer.Expires(client, 10*time.Millisecond, "load batch 7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("late:", <-late)
	_ = release()
	// Output: late: load batch 7
}
