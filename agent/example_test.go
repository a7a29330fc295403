package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// Two workers on this host, with everything that an agent needs.
func Example() {
	ctx, quiet := context.Background(), slog.New(slog.DiscardHandler)
	meet, err := c10d.New(rendezvous.Spec{
		RunID: "job7", Logger: quiet,
		Endpoint: "localhost:0",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	supervisor, err := process.NewSupervisor(process.SupervisorConfig{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer supervisor.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	run, err := logs.New(logs.Config{Dir: dir, RunID: "job7", Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer run.Close(true)

	a, err := agent.New(agent.Config{
		Spec: agent.Spec{
			Role: "trainer", LocalWorldSize: 2, Entrypoint: "/bin/sh",
			Args: func(int, int) []string { return []string{"-c", "exit $((RANK * 3))"} },
		},
		Rendezvous: meet, Supervisor: supervisor, Logs: run, Host: "host1", Logger: quiet,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := a.Run(ctx)
	fmt.Println(result.State, err)
	fmt.Println("rank", result.Report.Root().Rank, "ended with", result.Report.Root().ExitCode)
	fmt.Println(meet.Shutdown(ctx))
	// Output:
	// FAILED <nil>
	// rank 1 ended with 3
	// <nil>
}
