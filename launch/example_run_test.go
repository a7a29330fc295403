package launch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// A job of two workers on this host. A program with a guard has process.GuardMain
// first in main.
func ExampleRun() {
	cfg := launch.Default()
	cfg.NprocPerNode = 2
	cfg.Workers.Entrypoint, cfg.Workers.Args = "/bin/sh", []string{"-c", "exit $((RANK * 3))"}
	cfg.Logger = slog.New(slog.DiscardHandler)
	result, err := launch.Run(context.Background(), cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	root := result.Report.Root()
	fmt.Println(result.State, "rank", root.Rank, "exit code", root.ExitCode)
	// Output: FAILED rank 1 exit code 3
}

// register names the functions that workers run. main calls it before
// process.FuncMain:
//
//	process.GuardMain()
//	register()
//	process.FuncMain()
func register() {
	process.Register("hello", process.JSON(func(_ context.Context, name string) (string, error) {
		return "hello " + name + ", from rank " + os.Getenv("RANK"), nil
	}))
}

// Workers that are functions of this program, each with an input of its own.
func ExampleRun_function() {
	names := []string{"Ada", "Grace"}
	cfg := launch.Default()
	cfg.NprocPerNode = len(names)
	cfg.Workers.Func = "hello"
	cfg.Workers.Input = func(localRank int) []byte {
		input, _ := json.Marshal(names[localRank])
		return input
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	result, err := launch.Run(context.Background(), cfg)
	if err != nil || result.IsFailed() {
		fmt.Println(err, result)
		return
	}
	for rank := range names {
		fmt.Printf("%s\n", result.ReturnValues[rank])
	}
	// Output:
	// "hello Ada, from rank 0"
	// "hello Grace, from rank 1"
}

// announced is a rendezvous of one's own: another one, and something besides.
type announced struct{ rendezvous.Handler }

func (a announced) Next(ctx context.Context) (*rendezvous.Info, error) {
	info, err := a.Handler.Next(ctx)
	if err == nil {
		fmt.Println("round", info.Round, "has", info.WorldSize, "host")
	}
	return info, err
}

// states is a sink of one's own.
type states struct{}

func (states) Record(l events.Line) {
	if e, ok := l.(events.Event); ok && e.Worker == nil {
		fmt.Println(e.State)
	}
}

// A job with a rendezvous and a sink for its events that are the caller's own.
func ExampleRun_parts() {
	quiet := slog.New(slog.DiscardHandler)
	meet, err := c10d.New(rendezvous.Spec{
		RunID: "job7", Logger: quiet,
		Endpoint: "localhost:0",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg := launch.Default()
	cfg.Workers.Entrypoint = "/bin/true"
	cfg.Rendezvous.Handler = announced{meet}
	cfg.Records.Events = states{}
	cfg.Logger = quiet
	if _, err := launch.Run(context.Background(), cfg); err != nil {
		fmt.Println(err)
	}
	// Output:
	// round 0 has 1 host
	// RENDEZVOUS
	// ASSIGN_WORKER_RANKS
	// SUCCEEDED
}
