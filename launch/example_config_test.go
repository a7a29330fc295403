package launch_test

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/metrics"
)

// A job of two hosts, as each of them has it. Resolve says what Run would make of it.
func ExampleConfig() {
	cfg, err := launch.Resolve(launch.Config{
		RunID: "job7", MinNodes: 2, MaxNodes: 2, NprocPerNode: 8, Options: agent.Options{MaxRestarts: 3},
		Rendezvous: launch.Rendezvous{Backend: "c10d", Endpoint: "host1:29400"},
		Workers:    launch.Workers{Role: "trainer", Entrypoint: "/bin/sh", Args: []string{"-c", "echo $RANK"}},
		Logs:       logs.Config{Tee: logs.StdSpec{All: logs.StdAll}},
		Records:    launch.Records{Metrics: metrics.Console(io.Discard)},
		Logger:     slog.New(slog.DiscardHandler),
	})
	fmt.Println(cfg.ShutdownTimeout, cfg.Records.MetricsHandler, err)
	// Output: 30s null <nil>
}
