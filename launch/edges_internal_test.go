package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/rendezvous"
)

// textLogger is a logger whose lines can be read.
func textLogger() (*slog.Logger, *bytes.Buffer) {
	var log bytes.Buffer
	return slog.New(slog.NewTextHandler(&log, nil)), &log
}

// The job's health is served where the option says, or at torchrun's port; not at what is no port.
func TestHealthAddress(t *testing.T) {
	for _, tt := range []struct {
		name, option, variable, want string
		warns                        bool
	}{
		{"nowhere", "", "", "", false},
		{"the option", "10.0.0.1:9000", "", "10.0.0.1:9000", false},
		{"torchrun's variable", "", "8080", "8080", false},
		{"both", "9000", "8080", "9000", false},
		{"any port", "", "0", "0", false},
		{"a name", "", "http", "", true},
		{"negative", "", "-1", "", true},
		{"too large", "", "65536", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log, lines := textLogger()
			cfg := Config{Logger: log, Env: []string{health.EnvPort + "=" + tt.variable}}
			cfg.Health.Addr = tt.option
			o := &observed{cfg: &cfg}
			if got := o.addr(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if warns := strings.Contains(lines.String(), "value="+tt.variable); warns != tt.warns {
				t.Errorf("a warning with the value: %t, want %t: %s", warns, tt.warns, lines)
			}
		})
	}
}

// The log says where the job's health is served, and nothing where it is not.
func TestHealthIsLogged(t *testing.T) {
	for addr, want := range map[string]*regexp.Regexp{
		"127.0.0.1:0": regexp.MustCompile(`level=INFO msg="serving the job's health" url=http://127.0.0.1:\d+/?\n`),
		"":            nil,
	} {
		log, lines := textLogger()
		cfg := Default()
		cfg.Workers.Entrypoint, cfg.Logs.Dir, cfg.Logger, cfg.Health.Addr = "/bin/true", t.TempDir(), log, addr
		cfg.Env = []string{"PATH=" + os.Getenv("PATH")}
		if result, err := Run(t.Context(), cfg); err != nil || result.IsFailed() {
			t.Fatal(result, err)
		}
		if got := strings.Contains(lines.String(), "health"); got != (want != nil) || want != nil && !want.MatchString(lines.String()) {
			t.Errorf("address %q: the log has\n%s, want %v", addr, lines, want)
		}
	}
}

// What people are told names options, and errors name fields.
func TestWaitingNamesOptions(t *testing.T) {
	var out bytes.Buffer
	o := &observed{Observer: &jobstate.Observer{}, line: newWaitingLine(&out)}
	o.waiting(rendezvous.Waiting{Note: "node rank 1 has joined already, from host a; give each host its own Spec.NodeRank"})
	if got := out.String(); got != "muster: waiting for hosts: node rank 1 has joined already, from host a; give each host its own --node-rank\n" {
		t.Errorf("got %q", got)
	}
}

// Metrics are only kept where somebody can ask for them.
func TestWhoKeepsMetrics(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   bool
	}{
		{"nobody can ask", func(*Config) {}, false},
		{"a port", func(c *Config) { c.Health.Addr = "0" }, true},
		{"a socket", func(c *Config) { c.Socket = true }, true},
		{"other hosts", func(c *Config) { c.MaxNodes = 2 }, true},
	} {
		cfg := Config{MaxNodes: 1, Env: []string{}}
		tt.change(&cfg)
		o := &observed{cfg: &cfg, Observer: &jobstate.Observer{}}
		observers := o.observers(io.Discard)
		if got := o.metrics != nil; got != tt.want {
			t.Errorf("%s: metrics are kept: %t, want %t", tt.name, got, tt.want)
		}
		for _, observe := range observers { // none of them minds an event
			observe(agent.Event{Job: &agent.Job{}, What: agent.Joining{}})
		}
	}
}

// A seconds' number turns the check for uninterruptible sleep on, as in torchrun.
func TestUninterruptibleTimeout(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "-1": 0, "x": 0, "nan": 0, "inf": 0, "1e300": 0, "90": 90 * time.Second, "0.5": 500 * time.Millisecond,
	} {
		cfg := &Config{Env: []string{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=" + value}}
		if got := uninterruptibleTimeout(cfg); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

// Workers get the launcher's variables: torchrun's, OpenMP's threads if they are given, and with virtual ranks the device.
func TestWorkerEnv(t *testing.T) {
	cfg := &Config{SignalsText: "SIGTERM,SIGINT", Env: []string{"CUDA_VISIBLE_DEVICES=4,5"}}
	want := map[string]string{"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT"}
	if d := cmp.Diff(want, workerEnv(cfg)(1)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	cfg.Workers.OMPNumThreads, cfg.Workers.VirtualLocalRank = "3", true
	env := workerEnv(cfg)
	for rank, device := range []string{"4", "5"} {
		want := map[string]string{"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT", "OMP_NUM_THREADS": "3",
			"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
		if d := cmp.Diff(want, env(rank)); d != "" {
			t.Errorf("rank %d (-want +got):\n%s", rank, d)
		}
	}
}

// Arguments have the worker's ranks and host in them; with torchrun's macros only its own.
func TestArguments(t *testing.T) {
	w := &Workers{Role: "trainer", Args: []string{"${local_rank}/${rank}/${role_name}/${hostname}", "$$"}}
	if d := cmp.Diff([]string{"1/9/trainer/h0", "$"}, w.arguments("h0")(1, 9)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	w.TorchrunMacros = true
	if d := cmp.Diff([]string{"1/${rank}/${role_name}/${hostname}", "$"}, w.arguments("h0")(1, 9)); d != "" {
		t.Errorf("as torchrun (-want +got):\n%s", d)
	}
}

// The last of several entries of one variable counts, as for the shell.
func TestLookupEnv(t *testing.T) {
	cfg := &Config{Env: []string{"A=1", "AB=2", "A=3", "EMPTY=", "NONE"}}
	for name, want := range map[string]string{"A": "3 true", "AB": "2 true", "EMPTY": " true", "NONE": " false", "B": " false"} {
		if value, ok := cfg.LookupEnv(name); fmt.Sprint(value, " ", ok) != want {
			t.Errorf("%s: got %q %t, want %s", name, value, ok, want)
		}
	}
	t.Setenv("LAUNCH_TEST", "here")
	if value, _ := new(Config).LookupEnv("LAUNCH_TEST"); value != "here" {
		t.Errorf("without Env: got %q, want that of the program", value)
	}
}

// A file that others may not run, or that is elsewhere than the PATH, comes with what to do about it.
func TestEntrypointHints(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.sh"), []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"PATH": "/usr/bin:/bin", "PYTHON_EXEC": "/no/python"}[name]
		return value, ok
	}
	for name, want := range map[string]string{
		"./train.sh":    "; chmod +x it, or let an interpreter run it",
		"train.sh":      "; write ./train.sh for the file in this directory",
		"nothing-there": "; give the path of a program",
		"/no/python":    "; set PYTHON_EXEC to an interpreter, or unset it",
	} {
		err := checkEntrypoint(name, lookup)
		if err == nil || !strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), "cannot run "+name+": ") {
			t.Errorf("%s: got %v, want %q at its end", name, err, want)
		}
		if named := strings.HasPrefix(fmt.Sprint(err), "PYTHON_EXEC: "); named != (name == "/no/python") {
			t.Errorf("%s: the variable is named: %t: %v", name, named, err)
		}
	}
}

// A backend that is not known comes with the one that was meant, if that can be guessed.
func TestFindBackend(t *testing.T) {
	for name, want := range map[string]string{
		"c10d": "", "quorum": "",
		"c10":       `rendezvous backend "c10" is not known; did you mean c10d?`,
		"zookeeper": `rendezvous backend "zookeeper" is not known, and Python plug-ins cannot be loaded; want static, c10d, etcd or quorum`,
	} {
		got := ""
		if b, err := FindBackend(name); err != nil {
			got = err.Error()
		} else if b.Name != name {
			t.Errorf("%s: got %s", name, b.Name)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// What of the configuration has no effect, or cannot work on other hosts, is logged with what to do.
func TestHandlerWarns(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string // of each warning; in the order in which they come
	}{
		{"nothing", func(*Config) {}, nil},
		{"a key with a typo", func(c *Config) { c.Rendezvous.Conf = map[string]string{"join_timout": "1"} },
			[]string{`key=join_timout backend=c10d hint="did you mean join_timeout?"`}},
		{"keys of nobody", func(c *Config) { c.Rendezvous.Conf = map[string]string{"zzz": "1", "qqq": "2"} },
			[]string{"key=qqq backend=c10d hint=\"`muster help run` names the keys\"", "key=zzz backend=c10d"}},
		{"an address of this host only", func(c *Config) { c.MaxNodes, c.Rendezvous.Endpoint = 2, "localhost:29400" },
			[]string{"endpoint=localhost:29400"}},
		{"MASTER_ADDR is not read", func(c *Config) {
			c.MaxNodes, c.Rendezvous.Endpoint = 2, "127.0.0.1:29400"
			c.Env = append(c.Env, "MASTER_ADDR=node7")
		}, []string{`endpoint=127.0.0.1:29400 hint="MASTER_ADDR=node7 in the environment is not read; pass it with Rendezvous.MasterAddr"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log, lines := textLogger()
			cfg := Default()
			cfg.Logger, cfg.Workers.Entrypoint, cfg.Env = log, "/bin/true", []string{"PATH=/bin"}
			cfg.Rendezvous.Backend = "c10d"
			tt.change(&cfg)
			cfg, err := Resolve(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := newHandler(&cfg, "h0", func(rendezvous.Waiting) {}); err != nil {
				t.Fatal(err)
			}
			got := slices.Collect(strings.Lines(lines.String()))
			if len(got) != len(tt.want) {
				t.Fatalf("%d warnings, want %d:\n%s", len(got), len(tt.want), lines)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("got %s, want %s", got[i], want)
				}
			}
		})
	}
}

// Where to look while the job runs is said in a line, unless the logger wants it quiet.
func TestAnnounce(t *testing.T) {
	log, _ := textLogger()
	for _, tt := range []struct {
		name, page, dir string
		change          func(*Config)
		want            string
	}{
		{"nothing", "", "", func(*Config) {}, ""},
		{"a page", "http://h:1/", "", func(*Config) {}, "muster: status page at http://h:1/\n"},
		{"a temporary directory", "", "/tmp/x", func(*Config) {}, "muster: log directory /tmp/x\n"},
		{"files are asked for", "http://h:1/", "/logs", func(c *Config) { c.Logs.Dir = "/logs" }, "muster: status page at http://h:1/, log files in /logs\n"},
		{"a tee", "", "/tmp/x", func(c *Config) { c.Logs.Tee, _ = logs.ParseStd("3") }, "muster: log files in /tmp/x\n"},
		{"a name of several lines", "", "/tmp/a\nb", func(*Config) {}, "muster: log directory /tmp/a b\n"},
		{"quiet", "http://h:1/", "/logs", func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) }, ""},
	} {
		cfg := Config{Logger: log}
		tt.change(&cfg)
		var out bytes.Buffer
		(&observed{cfg: &cfg}).announce(&out, tt.page, tt.dir)
		if out.String() != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, out.String(), tt.want)
		}
	}
}

// Errors of this package lead to what caused them.
func TestErrorsUnwrap(t *testing.T) {
	for _, err := range []error{&ConfigError{syscall.EACCES}, &HealthCheckError{Command: "c", Err: syscall.EACCES}} {
		if !errors.Is(err, syscall.EACCES) {
			t.Errorf("%T does not lead to its cause", err)
		}
	}
}
