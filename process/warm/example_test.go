package warm_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/process/warm"
)

// Two Python workers, started again once: the second start is a fork of a process that has imported what they import.
func ExampleHost() {
	supervisor, err := process.NewSupervisor(process.SupervisorConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer supervisor.Close()
	ctx := context.Background()
	host := warm.New(ctx, warm.Config{
		Supervisor: supervisor,
		Varies:     func(name string) bool { return name == "RANK" },
		Logger:     slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	defer host.Close()
	for range 2 {
		group, err := host.Start(process.Config{
			Args: map[int][]string{0: {"python3", "train.py"}, 1: {"python3", "train.py"}},
			Envs: map[int]map[string]string{0: {"RANK": "0"}, 1: {"RANK": "1"}},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		result, err := group.Wait(ctx)
		group.Close(syscall.SIGTERM, 30*time.Second)
		fmt.Println(result, err)
	}
}
