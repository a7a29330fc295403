package launch_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/rendezvous/c10d"
)

// config is a Config that Resolve has nothing against.
func config(change func(*launch.Config)) launch.Config {
	cfg := launch.Default()
	cfg.Workers.Entrypoint = "/bin/true"
	cfg.Env = []string{"PATH=/usr/bin:/bin"}
	change(&cfg)
	return cfg
}

// Source: run in torch/distributed/run.py.
func TestResolveRendezvous(t *testing.T) {
	const uuid = "<uuid>"
	isUUID := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	tests := []struct {
		name                   string
		change                 func(*launch.Config)
		backend, endpoint, run string
	}{
		{"nothing given", func(c *launch.Config) {}, "c10d", "localhost:0", uuid},
		{"id given", func(c *launch.Config) { c.RunID = "job7" }, "c10d", "localhost:0", "job7"},
		{"standalone of up to 4", func(c *launch.Config) { c.Rendezvous.Standalone, c.MaxNodes = true, 4 }, "c10d", "localhost:0", uuid},
		{"address without port", func(c *launch.Config) { c.Rendezvous.MasterAddr = "10.0.0.1" }, "c10d", "localhost:0", uuid},
		{"port", func(c *launch.Config) { c.Rendezvous.MasterPort = 1234 }, "static", "127.0.0.1:1234", "none"},
		{"address and port", func(c *launch.Config) { c.Rendezvous.MasterAddr, c.Rendezvous.MasterPort = "h", 1 }, "static", "h:1", "none"},
		{"bare IPv6", func(c *launch.Config) { c.Rendezvous.MasterAddr, c.Rendezvous.MasterPort = "::1", 1 }, "static", "[::1]:1", "none"},
		{"IPv6 in brackets", func(c *launch.Config) { c.Rendezvous.MasterAddr, c.Rendezvous.MasterPort = "[::1]", 1 }, "static", "[::1]:1", "none"},
		{"static endpoint", func(c *launch.Config) { c.Rendezvous.Endpoint = "localhost:29501" }, "static", "localhost:29501", "none"},
		{"static endpoint and id", func(c *launch.Config) { c.Rendezvous.Endpoint, c.RunID = "localhost:29501", "x" }, "static", "localhost:29501", "x"},
		{"c10d", func(c *launch.Config) { c.Rendezvous.Backend = "c10d" }, "c10d", "", "none"},
		{"c10d endpoint", func(c *launch.Config) { c.Rendezvous.Backend, c.Rendezvous.Endpoint = "c10d", "localhost:0" }, "c10d", "localhost:0", "none"},
		{"c10d ignores the port", func(c *launch.Config) { c.Rendezvous.Backend, c.Rendezvous.MasterPort = "c10d", 65536 }, "c10d", "", "none"},
		{"file store", func(c *launch.Config) {
			c.Rendezvous.Backend, c.Rendezvous.Endpoint = "c10d", "/tmp/x"
			c.Rendezvous.Conf = map[string]string{"store_type": "File"}
		}, "c10d", "localhost:0", uuid},
		{"standalone", func(c *launch.Config) { c.Rendezvous.Standalone = true }, "c10d", "localhost:0", uuid},
		{"standalone ignores the port", func(c *launch.Config) { c.Rendezvous.Standalone, c.Rendezvous.MasterPort = true, -1 }, "c10d", "localhost:0", uuid},
		{"standalone overrides", func(c *launch.Config) {
			c.Rendezvous.Standalone, c.Rendezvous.Backend, c.Rendezvous.Endpoint = true, "etcd", "h:1"
		}, "c10d", "localhost:0", uuid},
		{"standalone keeps an id", func(c *launch.Config) { c.Rendezvous.Standalone, c.RunID = true, "mine" }, "c10d", "localhost:0", "mine"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := launch.Resolve(config(tt.change))
			if err != nil {
				t.Fatal(err)
			}
			run := got.RunID
			if isUUID.MatchString(run) {
				run = uuid
			}
			if got.Rendezvous.Backend != tt.backend || got.Rendezvous.Endpoint != tt.endpoint || run != tt.run {
				t.Errorf("got %s at %q as %s, want %s at %q as %s", got.Rendezvous.Backend, got.Rendezvous.Endpoint, run, tt.backend, tt.endpoint, tt.run)
			}
			if got.Logs.RunID != got.RunID {
				t.Errorf("logs of run %s, want %s", got.Logs.RunID, got.RunID)
			}
			again, err := launch.Resolve(got)
			if err != nil {
				t.Fatal(err)
			}
			if again.Rendezvous.Backend != got.Rendezvous.Backend || again.Rendezvous.Endpoint != got.Rendezvous.Endpoint || again.RunID != got.RunID {
				t.Errorf("resolved again: %s at %s as %s", again.Rendezvous.Backend, again.Rendezvous.Endpoint, again.RunID)
			}
		})
	}
}

func TestResolveTwoIDsDiffer(t *testing.T) {
	a, errA := launch.Resolve(config(func(*launch.Config) {}))
	b, errB := launch.Resolve(config(func(*launch.Config) {}))
	if errA != nil || errB != nil || a.RunID == b.RunID {
		t.Errorf("run IDs %q, %q (%v, %v)", a.RunID, b.RunID, errA, errB)
	}
}

func TestResolveDefaults(t *testing.T) {
	got, err := launch.Resolve(launch.Config{Workers: launch.Workers{Entrypoint: "/bin/true"}})
	if err != nil {
		t.Fatal(err)
	}
	want := launch.Default()
	want.Workers = launch.Workers{Entrypoint: "/bin/true", Title: "/bin/true"} // no role is a role, too
	want.Rendezvous.Backend, want.Rendezvous.Endpoint = "c10d", "localhost:0"
	want.Stdout, want.Stderr = os.Stdout, os.Stderr
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(launch.Config{}, launch.Rendezvous{}), cmpopts.IgnoreFields(launch.Config{}, "RunID", "Logs", "SignalsToHandle", "Logger"),
		cmp.Comparer(func(a, b *os.File) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(got.SignalsToHandle) != 4 || got.Logger == nil || got.Logs.Stderr != os.Stderr {
		t.Errorf("signals %v, logger %v, logs on %v", got.SignalsToHandle, got.Logger, got.Logs.Stderr)
	}
}

// Hosts cannot meet in a file, whose path is no endpoint either: one error says so.
func TestResolveFileStoreOfHosts(t *testing.T) {
	_, err := launch.Resolve(config(func(c *launch.Config) {
		c.MinNodes, c.MaxNodes, c.Rendezvous.Backend, c.Rendezvous.Endpoint = 2, 2, "c10d", "/tmp/x"
		c.Rendezvous.Conf = map[string]string{"store_type": "file"}
	}))
	if err == nil || err.Error() != c10d.ErrFileStore.Error() {
		t.Errorf("%v, want %v", err, c10d.ErrFileStore)
	}
}

func TestResolveErrors(t *testing.T) {
	tests := []struct {
		name   string
		change func(*launch.Config)
		want   string
	}{
		{"negative nodes", func(c *launch.Config) { c.MinNodes = -1 }, "got -1:1"},
		{"min over max", func(c *launch.Config) { c.MinNodes, c.MaxNodes = 2, 1 }, "got 2:1"},
		{"negative nproc", func(c *launch.Config) { c.NprocPerNode = -1 }, "at least one worker is needed, got -1"},
		{"restarts", func(c *launch.Config) { c.MaxRestarts = -1 }, "max restarts must be >= 0, got -1"},
		{"barrier", func(c *launch.Config) { c.ExitBarrierTimeout = -1 }, "exit barrier timeout must be non-negative"},
		{"hang", func(c *launch.Config) { c.HangTimeout = -2 }, "hang timeout"},
		{"live timeout", func(c *launch.Config) { c.Live, c.LiveTimeout = true, -1 }, "live timeout"},
		{"events", func(c *launch.Config) { c.Records.EventLogHandler = "scuba" }, `"scuba" is not known`},
		{"signals", func(c *launch.Config) { c.SignalsText = "SIGKILL" }, "SIGKILL cannot be handled"},
		{"port", func(c *launch.Config) { c.Rendezvous.MasterPort = 65536 }, "want 0 to 65535, got 65536"},
		{"conf", func(c *launch.Config) { c.Rendezvous.Conf = map[string]string{"close_timeout": "soon"} }, "close_timeout=soon"},
		{"conf of another backend", func(c *launch.Config) {
			c.Rendezvous.Backend, c.Rendezvous.Endpoint, c.Rendezvous.Conf = "static", "host:x", map[string]string{"join_timeout": "soon"}
		}, "port is not a number"},
		{"health address", func(c *launch.Config) { c.Health.Addr = "99999" }, "port 99999 is more than 65535"},
		{"many hosts at port 0", func(c *launch.Config) {
			c.Rendezvous.Backend, c.Rendezvous.Endpoint, c.MinNodes, c.MaxNodes = "c10d", "h:0", 2, 2
		}, "endpoint h:0 has port 0"},
		{"several static hosts at port 0", func(c *launch.Config) { c.Rendezvous.Endpoint, c.MaxNodes = "h:0", 4 }, "nnodes=1:4, and the endpoint h:0 has port 0"},
		{"live, and a worker serves the store", func(c *launch.Config) {
			c.Live, c.Env = true, append(c.Env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
		}, "Config.Live and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 contradict each other"},
		{"etcd without an endpoint", func(c *launch.Config) { c.Rendezvous.Backend = "etcd" }, "the rendezvous endpoint is empty"},
		{"etcd-v2 without an endpoint", func(c *launch.Config) { c.Rendezvous.Backend = "etcd-v2" }, "the rendezvous endpoint is empty"},
		{"quorum of two", func(c *launch.Config) { c.Rendezvous.Backend, c.Rendezvous.Endpoint = "quorum", "a,b" }, "names 2 hosts"},
		{"backend", func(c *launch.Config) { c.Rendezvous.Backend = "zk" }, `"zk" is not known, and Python plug-ins cannot be loaded; want static, c10d, etcd or quorum`},
		{"static without port", func(c *launch.Config) { c.Rendezvous.Endpoint = "host" }, "port is missing in endpoint: host"},
		{"static port", func(c *launch.Config) { c.Rendezvous.Endpoint = "host:x" }, "port is not a number"},
		{"c10d endpoint", func(c *launch.Config) { c.Rendezvous.Backend, c.Rendezvous.Endpoint = "c10d", "a:b:c" }, "too many colons"},
		{"c10d endpoint without a host", func(c *launch.Config) {
			c.MaxNodes, c.Rendezvous.Backend, c.Rendezvous.Endpoint = 2, "c10d", ":29500"
		}, `rendezvous endpoint ":29500": the host is empty; give HOST:PORT`},
		{"static endpoint without a host", func(c *launch.Config) { c.MaxNodes, c.Rendezvous.Endpoint = 2, ":29500" }, "the host is empty"},
		{"node rank", func(c *launch.Config) { c.Rendezvous.MasterPort, c.Rendezvous.NodeRank = 1, 1 }, "node rank: want 0 to 0 for nnodes=1, got 1"},
		{"virtual rank", func(c *launch.Config) {
			c.Workers.VirtualLocalRank, c.NprocPerNode = true, 2
			c.Env = append(c.Env, "CUDA_VISIBLE_DEVICES=3")
		}, "local rank 1 has no device"},
		{"numa mode", func(c *launch.Config) { c.Workers.NUMABinding = "near" }, `got "near"`},
		{"no program", func(c *launch.Config) { c.Workers.Entrypoint = "" }, "no program is given"},
		{"program missing", func(c *launch.Config) { c.Workers.Entrypoint = "no-such-program" }, "no-such-program is not in any directory of PATH"},
		{"path missing", func(c *launch.Config) { c.Workers.Entrypoint = "/no/such/program" }, "no such file"},
		{"log directory is a file", func(c *launch.Config) { c.Logs.Dir = "/etc/passwd" }, "log directory /etc/passwd: /etc/passwd is a file, not a directory; name another"},
		{"log directory in a file", func(c *launch.Config) { c.Logs.Dir = "/etc/passwd/logs" }, "log directory: stat /etc/passwd/logs: not a directory"},
		{"filters without files", func(c *launch.Config) { c.Logs.Dir, c.Logs.DuplicateStderrFilters = "/dev/null", []string{"x"} }, "no place for duplicate filters"},
		{"directory", func(c *launch.Config) { c.Workers.Entrypoint = "/tmp" }, "/tmp is a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := launch.Resolve(config(tt.change))
			if _, ok := errors.AsType[*launch.ConfigError](err); !ok || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one problem: %v", err)
			}
		})
	}
	t.Run("all at once", func(t *testing.T) {
		_, err := launch.Resolve(config(func(c *launch.Config) {
			c.MaxRestarts, c.Rendezvous.Backend, c.Workers.Entrypoint, c.NprocPerNode = -1, "zk", "", -2
		}))
		if n := strings.Count(err.Error(), "\n") + 1; n != 4 {
			t.Errorf("%d problems, want 4: %v", n, err)
		}
	})
}

func TestResolveLogDirWritable(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o555); err != nil {
		t.Fatal(err)
	}
	resolve := func(logDir string) error {
		_, err := launch.Resolve(config(func(c *launch.Config) { c.Logs.Dir = logDir }))
		return err
	}
	if err := resolve(filepath.Join(dir, "to", "be", "made")); err != nil {
		t.Error(err)
	}
	if err := resolve(os.DevNull); err != nil {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		t.Skip("root may write anywhere")
	}
	want := "log directory " + closed + "/logs: " + closed + " is not writable; name another directory with logs.Config.Dir"
	if err := resolve(filepath.Join(closed, "logs")); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
