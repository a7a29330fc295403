package launch_test

import (
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/metrics"
)

type collected struct {
	mu    sync.Mutex
	names map[string]bool
}

func (c *collected) Emit(m metrics.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[m.Name] = true
}

func TestRunMetrics(t *testing.T) {
	c := &collected{names: map[string]bool{}}
	cfg := launch.Default()
	cfg.Entrypoint, cfg.Metrics, cfg.Logger = "/bin/true", c, slog.New(slog.DiscardHandler)
	if result, err := launch.Run(t.Context(), cfg); err != nil || result.IsFailed() {
		t.Fatal(result, err)
	}
	if len(c.names) == 0 {
		t.Error("no metrics came")
	}
}

// What cannot be a worker is refused before the job is joined.
func TestWorkerOfRun(t *testing.T) {
	for want, change := range map[string]func(*launch.Config){
		`no function "nobody" is registered`:                       func(c *launch.Config) { c.Func = "nobody" },
		"a worker needs an entrypoint or a function, and not both": func(c *launch.Config) { c.Func, c.Args = "hello", []string{"x"} },
		"an input is for functions; a program has arguments":       func(c *launch.Config) { c.Entrypoint, c.Input = "/bin/true", func(int) []byte { return nil } },
		"cannot run " + os.DevNull + ": " + os.DevNull + " is not": func(c *launch.Config) { c.Entrypoint = os.DevNull },
	} {
		cfg := launch.Default()
		change(&cfg)
		if _, err := launch.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
