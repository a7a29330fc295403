package timer_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/muster-run/muster/timer"
)

// quiet has no log.
var quiet = timer.Config{Logger: slog.New(slog.DiscardHandler)}

// A watchdog for the program's own work. For a child process, the client has its PID, or the
// child calls FromEnv and has LocalServer.Env in its environment.
func ExampleStartLocal() {
	late := make(chan string)
	queue := &timer.LocalQueue{}
	server, err := timer.StartLocal(reported(late), queue)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	client := &timer.LocalClient{Queue: queue}
	if err := client.Acquire("step 7", time.Now().Add(10*time.Millisecond)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("late:", <-late)
	// Output: late: step 7
}

// The function must return within a minute.
func ExampleExpires() {
	step := func() error {
		release, err := timer.Expires(timer.FromEnv(), time.Minute, "")
		if err != nil {
			return err
		}
		defer release()
		// … what must be done within a minute …
		return nil
	}
	fmt.Println(step())
	// Output: <nil>
}

func ExampleLocalQueue() {
	var queue timer.LocalQueue
	client := &timer.LocalClient{Queue: &queue, PID: 4711}
	fmt.Println(client.Acquire("step 7", time.Unix(1.7e9, 0)), client.Release("step 7"))
	for _, r := range queue.Get(context.Background(), queue.Size()) {
		fmt.Println(r)
	}
	// Output:
	// <nil> <nil>
	// {"version": 1, "pid": 4711, "scope_id": "step 7", "expiration_time": 1700000000.0, "signal": 9}
	// {"version": 1, "pid": 4711, "scope_id": "step 7", "expiration_time": -1, "signal": 0}
}

// A channel is a queue, too.
func ExampleRequestQueue() {
	late := make(chan string)
	queue := make(channel, 100)
	server, err := timer.StartLocal(reported(late), queue)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	queue <- timer.Request{PID: os.Getpid(), ScopeID: "step 7", ExpirationTime: time.Now(), Signal: syscall.SIGTERM}
	fmt.Println("late:", <-late)
	// Output: late: step 7
}

type channel chan timer.Request

func (c channel) Size() int { return len(c) }

func (c channel) Get(ctx context.Context, n int) (got []timer.Request) {
	for len(got) < n {
		select {
		case r := <-c:
			got = append(got, r)
			continue
		default:
		}
		select {
		case r := <-c:
			got = append(got, r)
		case <-ctx.Done():
			return got
		}
	}
	return got
}

// The deadlines of a child process that knows nothing of timers.
func ExampleLocalClient() {
	queue := &timer.LocalQueue{}
	server, err := timer.StartLocal(quiet, queue)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		fmt.Println(err)
		return
	}
	client := &timer.LocalClient{Queue: queue, PID: child.Process.Pid, Signal: syscall.SIGTERM}
	if err := client.Acquire("sleep", time.Now().Add(10*time.Millisecond)); err != nil {
		fmt.Println(err)
	}
	fmt.Println(child.Wait())
	// Output: signal: terminated
}

func ExampleLocalServer() {
	queue := &timer.LocalQueue{}
	server, err := timer.StartLocal(quiet, queue)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(server.Expired(time.Now()), server.Close())
	// Output: map[] <nil>
}
