package timer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-run/muster/timer"
)

// reported makes a Config of a server that only tells which timer has expired.
func reported(late chan<- string) timer.Config {
	return timer.Config{
		Reap: func(_ context.Context, e *timer.Expiry) error {
			late <- e.Timers[0].ScopeID // and not e.Kill()
			return nil
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// A FIFO as PyTorch's FileTimerClient uses it, and a client of it. A worker finds the
// path in TORCHELASTIC_TIMER_FILE.
func ExampleStartFIFO() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	late := make(chan string)
	var server *timer.FileServer
	server, err = timer.StartFIFO(reported(late), filepath.Join(dir, "fifo"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	client := &timer.FileClient{Path: server.Path()}
	if err := client.Acquire("step 7", time.Now().Add(10*time.Millisecond)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("late:", <-late)
	// Output: late: step 7
}

// A socket, over which the server answers each request.
func ExampleStartSocket() {
	late := make(chan string)
	server, err := timer.StartSocket(reported(late), "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	// A worker of an agent finds the path in its environment, and calls FromEnv.
	client := &timer.SocketClient{Path: server.Path()}
	defer client.Close()
	fmt.Println(client.Heartbeat(7))
	if err := client.Acquire("step 7", time.Now().Add(10*time.Millisecond)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("late:", <-late)
	// Output:
	// <nil>
	// late: step 7
}

// One server with a FIFO and a socket, and contexts that end them.
func ExampleListenFIFO() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	late := make(chan string)
	server, err := timer.NewServer(reported(late))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	fifo, err := timer.ListenFIFO(server, filepath.Join(dir, "fifo"))
	if err != nil {
		fmt.Println(err)
		return
	}
	socket, err := timer.ListenSocket(server, "")
	if err != nil {
		fmt.Println(err, fifo.Close())
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = server.Run(ctx) })
	wg.Go(func() { _ = fifo.Serve(ctx) })
	wg.Go(func() { _ = socket.Serve(ctx) })

	client := &timer.FileClient{Path: fifo.Path()}
	if err := client.Acquire("step 7", time.Now().Add(10*time.Millisecond)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("late:", <-late)
	// Output: late: step 7
}

// What a worker does: without an agent the client does nothing.
func ExampleFromEnv() {
	var client timer.Client = timer.FromEnv()
	if err := client.Acquire("step 7", time.Now().Add(time.Minute)); err != nil {
		fmt.Println(err)
		return
	}
	// … what must be done within a minute …
	fmt.Println(client.Release("step 7"))
	// Output: <nil>
}

func ExampleRequest_UnmarshalJSON() {
	var r timer.Request
	err := json.Unmarshal([]byte(`{"version": 1, "pid": 27237, "scope_id": "step 7", "expiration_time": 1700000000.5, "signal": 9}`), &r)
	fmt.Println(r.PID, r.ScopeID, r.ExpirationTime.UTC().Format(time.RFC3339Nano), err)
	fmt.Println(timer.Request{PID: r.PID, ScopeID: r.ScopeID})
	// Output:
	// 27237 step 7 2023-11-14T22:13:20.5Z <nil>
	// {"version": 1, "pid": 27237, "scope_id": "step 7", "expiration_time": -1, "signal": 0}
}
