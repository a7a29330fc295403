package launch_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
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
	cfg.Workers.Entrypoint, cfg.Records.Metrics, cfg.Logger = "/bin/true", c, slog.New(slog.DiscardHandler)
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
		`no function "nobody" is registered`:                                           func(c *launch.Config) { c.Workers.Func = "nobody" },
		"a worker needs an Entrypoint, with Args, or a Func, with Input, and not both": func(c *launch.Config) { c.Workers.Func, c.Workers.Args = "hello", []string{"x"} },
		"Workers.Input is for functions; a program has Args": func(c *launch.Config) {
			c.Workers.Entrypoint, c.Workers.Input = "/bin/true", func(int) []byte { return nil }
		},
		"cannot run " + os.DevNull + ": " + os.DevNull + " is not":         func(c *launch.Config) { c.Workers.Entrypoint = os.DevNull },
		"no program is given; give the path of one, as Workers.Entrypoint": func(c *launch.Config) { c.Workers.Entrypoint = "" },
		"is a directory: permission denied; give the path of a program":    func(c *launch.Config) { c.Workers.Entrypoint = "/dev" },
	} {
		cfg := launch.Default()
		change(&cfg)
		if _, err := launch.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// leaver is a handler that knows how it was ended.
type leaver struct {
	rendezvous.Handler
	left int
}

func (l *leaver) Leave(ctx context.Context) error {
	l.left++
	return l.Handler.Leave(ctx)
}

// Run ends a handler that it was given also where the host does not join.
func TestRunEndsHandler(t *testing.T) {
	for name, change := range map[string]func(*launch.Config){
		"health check": func(c *launch.Config) { c.HealthCheck = "exit 1" },
		"config":       func(c *launch.Config) { c.MaxRestarts = -1 },
	} {
		handler, err := c10d.New(rendezvous.Spec{RunID: "job1", Endpoint: "localhost:0"})
		if err != nil {
			t.Fatal(err)
		}
		l := &leaver{Handler: handler}
		cfg := launch.Default()
		cfg.Workers.Entrypoint, cfg.Rendezvous.Handler, cfg.Logger = "/bin/true", l, slog.New(slog.DiscardHandler)
		change(&cfg)
		if r, err := launch.Run(t.Context(), cfg); err == nil || r != nil || l.left != 1 {
			t.Errorf("%s: %+v, %v, left %d times, want an error and once", name, r, err, l.left)
		}
	}
}

// A job in a worker of another serves its timers at a FIFO of its own.
func TestNestedFileTimer(t *testing.T) {
	outer := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(outer, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(outer, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cfg := launch.Default()
	cfg.Env = append(os.Environ(), "TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE="+outer, "TORCHELASTIC_RUN_ID=outer")
	cfg.Workers.Entrypoint, cfg.Logger = "/bin/sh", slog.New(slog.DiscardHandler)
	cfg.Workers.Args = []string{"-c", `test -p "$TORCHELASTIC_TIMER_FILE" && test "$TORCHELASTIC_TIMER_FILE" != "$0"`, outer}
	if result, err := launch.Run(t.Context(), cfg); err != nil || result.IsFailed() {
		t.Error(result, err)
	}
}

// A log directory that others can replace is used, with one warning. TMPDIR counts where
// it is made there.
func TestExposedLogDir(t *testing.T) {
	if at, _, err := safeopen.Exposed(t.TempDir()); at != "" || err != nil {
		t.Skipf("%s is exposed: %v", at, err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, dir, temp, want string
	}{
		{"own", t.TempDir(), open, ""},
		{"open", filepath.Join(open, "logs"), t.TempDir(), "; name another one with logs.Config.Dir, or let"},
		{"open TMPDIR", "", open, "; set TMPDIR or name one with logs.Config.Dir, or let"},
		{"no files", os.DevNull, open, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("TMPDIR", tt.temp)
			var log bytes.Buffer
			cfg := launch.Default()
			cfg.Workers.Entrypoint, cfg.Logs.Dir = "/bin/true", tt.dir
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			if result, err := launch.Run(t.Context(), cfg); err != nil || result.IsFailed() {
				t.Fatal(result, err)
			}
			n := strings.Count(log.String(), "can replace the log directory")
			if tt.want == "" && n != 0 || tt.want != "" && (n != 1 || !strings.Contains(log.String(), tt.want) || !strings.Contains(log.String(), " directory="+open+" owner_uid="+strconv.Itoa(os.Geteuid()))) {
				t.Errorf("%d warnings: %s", n, log.String())
			}
		})
	}
}

// A panic of the caller's own code is what the caller sees.
func TestRunPanics(t *testing.T) {
	for name, change := range map[string]func(*launch.Config){
		"observer": func(c *launch.Config) {
			c.Records.Observers = append(c.Records.Observers, func(agent.Event) { panic("mine is broken") })
		},
		"handler": func(c *launch.Config) { c.Rendezvous.Handler = broken{} },
		"events":  func(c *launch.Config) { c.Records.Events = broken{} },
		"metrics": func(c *launch.Config) { c.Records.Metrics = broken{} },
		"layout": func(c *launch.Config) {
			c.Logs.Layout = func(string, logs.Worker) logs.Files { panic("mine is broken") }
		},
		"input": func(c *launch.Config) {
			c.Workers.Entrypoint, c.Workers.Func, c.Workers.Input = "", "hello", func(int) []byte { panic("mine is broken") }
		},
		"start": func(c *launch.Config) {
			c.Workers.Start = func(*process.Supervisor, process.Config) (agent.Group, error) { panic("mine is broken") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := launch.Default()
			cfg.Workers.Entrypoint, cfg.Logger = "/bin/true", slog.New(slog.DiscardHandler)
			cfg.Logs.Dir = t.TempDir()
			change(&cfg)
			defer func() {
				if got := recover(); got != "mine is broken" {
					t.Errorf("the panic is %v", got)
				}
			}()
			result, err := launch.Run(t.Context(), cfg)
			t.Errorf("no panic: %v, %v", result, err)
		})
	}
}

// What is broken panics.
type broken struct{ rendezvous.Basic }

func (broken) Record(events.Line)  { panic("mine is broken") }
func (broken) Emit(metrics.Metric) { panic("mine is broken") }

func (broken) Backend() string                                { return "mine" }
func (broken) RunID() string                                  { return "job7" }
func (broken) UseAgentStore() bool                            { return false }
func (broken) Changes() <-chan rendezvous.Change              { return nil }
func (broken) Next(context.Context) (*rendezvous.Info, error) { panic("mine is broken") }
func (broken) Leave(context.Context) error                    { return nil }
func (broken) Shutdown(context.Context) error                 { return nil }

func TestSignalsThatCannotBeHandled(t *testing.T) {
	cfg := launch.Default()
	cfg.Workers.Entrypoint, cfg.SignalsToHandle = "/bin/true", []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}
	cfg.PreemptionSignals = []syscall.Signal{99}
	_, err := launch.Resolve(cfg)
	for _, want := range []string{": 9 (", ": 99 ("} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// What packages say is wrong speaks of their fields, not of the command line's options.
func TestErrorsSpeakOfFields(t *testing.T) {
	t.Setenv("PYTHON_EXEC", "")
	for want, cfg := range map[string]launch.Config{
		"as Workers.Entrypoint, or a function": {},
		"with logs.Config.Dir":                 {Logs: logs.Config{Dir: "/dev/null/x"}},
		"Rendezvous.Standalone is a job":       {MinNodes: 2, Rendezvous: launch.Rendezvous{Standalone: true}},
		"or as Rendezvous.MasterPort":          {MinNodes: 2, Rendezvous: launch.Rendezvous{Endpoint: "host"}},
		"events.Config.File":                   {Records: launch.Records{EventLogFile: "/dev/null/x"}},
	} {
		if cfg.Logs.Dir+cfg.Records.EventLogFile != "" || cfg.MinNodes > 0 {
			cfg.Workers.Entrypoint = "/bin/true"
		}
		_, err := launch.Run(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "--") {
			t.Errorf("error %v, want %q, and no option", err, want)
		}
	}
}

// Who sets no Stderr gets none of the launcher's lines there.
func TestRunIsQuiet(t *testing.T) {
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = file
	var log, told bytes.Buffer
	cfg := launch.Config{Options: agent.Options{MaxRestarts: 1}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	cfg.Workers.Entrypoint = "/bin/true"
	for range 2 {
		if result, err := launch.Run(t.Context(), cfg); err != nil || result.IsFailed() {
			t.Errorf("%+v, %v", result, err)
		}
		cfg.Stderr = &told
	}
	if text, err := os.ReadFile(file.Name()); len(text) > 0 || err != nil {
		t.Errorf("stderr has %q, %v", text, err)
	}
	if !strings.Contains(told.String(), "muster: log directory ") {
		t.Errorf("a Stderr that is set has %q", &told)
	}
}
