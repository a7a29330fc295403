package runline

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/host/devices"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
)

// An outcome is what became of a command line.
type outcome struct {
	cfg      launch.Config // what would have been run
	exitCode string
	ran      bool
	status   int
	stderr   string
}

// problems lists the errors on stderr, each with its hint.
func (o outcome) problems() []string {
	var list []string
	for line := range strings.Lines(o.stderr) {
		line = strings.TrimSpace(line)
		if problem, ok := strings.CutPrefix(line, "error: "); ok {
			list = append(list, problem)
		} else if hint, ok := strings.CutPrefix(line, "hint: "); ok && len(list) > 0 {
			list[len(list)-1] += "; " + hint
		}
	}
	return list
}

// try runs a command line in the environment env, to which a PATH with python3
// is added, up to the start of the job.
func try(t *testing.T, env []string, self string, args ...string) outcome {
	t.Helper()
	var out outcome
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := Program{Self: self, Name: "muster run", Stderr: w, Stdout: w, env: append([]string{"PATH=" + bin(t)}, env...)}
	p.launch = func(_ context.Context, cfg launch.Config, exitCode, _ string) (int, bool, error) {
		out.cfg, out.exitCode, out.ran = cfg, exitCode, true
		return console.ExitOK, false, nil
	}
	done := make(chan string)
	go func() {
		text, _ := io.ReadAll(r)
		done <- string(text)
	}()
	out.status = p.Run(t.Context(), args)
	w.Close()
	out.stderr = <-done
	return out
}

// bin makes a directory with programs that nothing runs.
func bin(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range append(names, "python3", "tool") {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// script makes a directory with s.py the current one.
func script(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, mode := range map[string]os.FileMode{"s.py": 0o644, "s0.py": 0o644, "run.sh": 0o755} {
		if err := os.WriteFile(name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConfig(t *testing.T) {
	script(t)
	type c = launch.Config
	tests := []struct {
		name string
		env  []string
		args string
		got  func(c) any
		want any
	}{
		{"workers", nil, "--nproc-per-node 3 s.py", func(c c) any { return c.NprocPerNode }, 3},
		{"nodes", nil, "--nnodes 1:1 s.py", func(c c) any { return [2]int{c.MinNodes, c.MaxNodes} }, [2]int{1, 1}},
		{"no run id", nil, "s.py", func(c c) any { return len(c.RunID) }, 36},
		{"run id", nil, "--rdzv-id x s.py", func(c c) any { return c.RunID }, "x"},
		{"run id none", nil, "--rdzv-id none s.py", func(c c) any { return c.RunID }, "none"},
		{"empty run id", nil, "--rdzv-id= s.py", func(c c) any { return len(c.RunID) }, 36},
		{"empty run id, static", nil, "--rdzv-id= --master-port 1234 s.py", func(c c) any { return len(c.RunID) }, 36},
		{"empty run id, c10d", []string{"PET_RDZV_ID="}, "--rdzv-backend c10d --rdzv-endpoint h:1234 s.py", func(c c) any { return len(c.RunID) }, 36},
		{"empty run id of two hosts", nil, "--rdzv-id= --nnodes 2 --master-addr h s.py", func(c c) any { return c.RunID }, "none"},
		{"run id by variable", []string{"PET_RDZV_ID=y"}, "s.py", func(c c) any { return c.RunID }, "y"},
		{"static", nil, "--master-port 1234 --master-addr h s.py", func(c c) any { return c.Rendezvous.Backend + " " + c.Rendezvous.Endpoint }, "static h:1234"},
		{"alone", nil, "s.py", func(c c) any { return c.Rendezvous.Backend + " " + c.Rendezvous.Endpoint }, "c10d localhost:0"},
		{"conf", nil, "--rdzv-conf join_timeout=5,,x=1 s.py", func(c c) any { return nil }, nil},
		{"conf", nil, "--rdzv-conf a=b=c,d=e s.py", func(c c) any { return c.Rendezvous.Conf }, map[string]string{"a": "b=c", "d": "e"}},
		{"restarts", nil, "--max-restarts 4 s.py", func(c c) any { return c.MaxRestarts }, 4},
		{"shutdown with a unit", nil, "--shutdown-timeout 1m30s s.py", func(c c) any { return c.ShutdownTimeout }, 90 * time.Second},
		{"shutdown in milliseconds", nil, "--shutdown-timeout 1500ms s.py", func(c c) any { return c.ShutdownTimeout }, 1500 * time.Millisecond},
		{"shutdown as Python has it", nil, "--shutdown-timeout 30.0 s.py", func(c c) any { return c.ShutdownTimeout }, 30 * time.Second},
		{"hang timeout with a unit", []string{"MUSTER_HANG_TIMEOUT=1h30m"}, "s.py", func(c c) any { return c.HangTimeout }, 90 * time.Minute},
		{"shutdown", nil, "--shutdown-timeout 0 s.py", func(c c) any { return c.ShutdownTimeout }, process.NoGrace},
		{"shutdown default", nil, "s.py", func(c c) any { return c.ShutdownTimeout }, 30 * time.Second},
		{"shutdown by variable", []string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7"}, "s.py", func(c c) any { return c.ShutdownTimeout }, 7 * time.Second},
		{"shutdown, both", []string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x"}, "--shutdown-timeout 3 s.py", func(c c) any { return c.ShutdownTimeout }, 3 * time.Second},
		{"barrier", nil, "--exit-barrier-timeout 1.5 s.py", func(c c) any { return c.ExitBarrierTimeout }, 1500 * time.Millisecond},
		{"signals", nil, "--signals-to-handle SIGUSR1,SIGTERM s.py", func(c c) any { return c.SignalsToHandle }, []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM}},
		{"no signals", nil, "--signals-to-handle= s.py", func(c c) any { return c.SignalsToHandle }, []syscall.Signal{}},
		{"signals' text", nil, "--signals-to-handle SIGUSR1,X s.py", func(c c) any { return c.SignalsText }, "SIGUSR1,X"},
		{"role", nil, "--role trainer s.py", func(c c) any { return c.Workers.Role }, "trainer"},
		{"empty role", nil, "--role= s.py", func(c c) any { return c.Workers.Role }, ""},
		{"empty role by variable", []string{"PET_ROLE="}, "s.py", func(c c) any { return c.Workers.Role }, ""},
		{"empty address that does not count", nil, "--master-addr= s.py", func(c c) any { return c.Rendezvous.Backend }, "c10d"},
		{"empty backend that does not count", nil, "--standalone --rdzv-backend= s.py", func(c c) any { return c.Rendezvous.Backend }, "c10d"},
		{"events", nil, "--event-log-handler console s.py", func(c c) any { return c.Records.EventLogHandler }, "console"},
		{"events' file", nil, "--event-log-file e.jsonl s.py", func(c c) any { return c.Records.EventLogFile }, "e.jsonl"},
		{"events' file by variable", []string{"MUSTER_EVENT_LOG_FILE=/dev/null"}, "s.py", func(c c) any { return c.Records.EventLogFile }, "/dev/null"},
		{"no events' file", nil, "--event-log-handler file s.py", func(c c) any { return c.Records.EventLogHandler + c.Records.EventLogFile }, "file"},
		{"metrics", nil, "--metrics-handler console s.py", func(c c) any { return c.Records.MetricsHandler }, "console"},
		{"no metrics", nil, "s.py", func(c c) any { return c.Records.MetricsHandler }, "null"},
		{"log directory", nil, "--log-dir l s.py", func(c c) any { return c.Logs.Dir }, "l"},
		{"redirects", nil, "-r 0:1 s.py", func(c c) any { return c.Logs.Redirects.String() }, "0:1"},
		{"tee", nil, "-t 3 s.py", func(c c) any { return c.Logs.Tee.String() }, "3"},
		{"filters", nil, "--duplicate-stdout-filters a,,b,c s.py", func(c c) any { return c.Logs.DuplicateStdoutFilters }, []string{"a,b", "c"}},
		{"no filters", nil, "s.py", func(c c) any { return c.Logs.DuplicateStderrFilters == nil }, true},
		{"empty filter", nil, "--duplicate-stderr-filters= s.py", func(c c) any { return c.Logs.DuplicateStderrFilters }, []string{""}},
		{"ranks", nil, "--local-ranks-filter 0,2 s.py", func(c c) any { return c.Logs.LocalRanksFilter }, []int{0, 2}},
		{"global ranks", []string{"MUSTER_RANKS_FILTER=0,5-7"}, "s.py", func(c c) any { return c.Logs.RanksFilter }, [][2]int{{0, 0}, {5, 7}}},
		{"prefix", nil, "--log-line-prefix-template x s.py", func(c c) any { return c.Logs.LinePrefixTemplate }, "x"},
		{"prefix by variable", []string{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=y"}, "s.py", func(c c) any { return c.Logs.LinePrefixTemplate }, "y"},
		{"collapse", nil, "--collapse s.py", func(c c) any { return c.Logs.Collapse }, true},
		{"collapse by variable", []string{"MUSTER_COLLAPSE=1"}, "s.py", func(c c) any { return c.Logs.Collapse }, true},
		{"default logs specs", nil, "--logs-specs default s.py", func(c c) any { return true }, true},

		{"python", nil, "s.py a -b", func(c c) any { return c.Workers.Args }, []string{"-u", "s.py", "a", "-b"}},
		{"interpreter", nil, "s.py", func(c c) any { return filepath.Base(c.Workers.Entrypoint) }, "python3"},
		{"PYTHON_EXEC", []string{"PYTHON_EXEC=tool"}, "s.py", func(c c) any { return c.Workers.Entrypoint }, "tool"},
		{"title", []string{"PYTHON_EXEC=tool"}, "s.py", func(c c) any { return c.Workers.Title }, "s.py"},
		{"module", nil, "-m pkg.mod a", func(c c) any { return c.Workers.Args }, []string{"-u", "-m", "pkg.mod", "a"}},
		{"module beside a file of its name", nil, "-m run.sh a", func(c c) any { return c.Workers.Args }, []string{"-u", "-m", "run.sh", "a"}},
		{"module's title", nil, "-m pkg.mod a", func(c c) any { return c.Workers.Title }, "pkg.mod"},
		{"no python", nil, "--no-python ./run.sh a", func(c c) any { return append([]string{c.Workers.Entrypoint, c.Workers.Title}, c.Workers.Args...) }, []string{"./run.sh", "./run.sh", "a"}},
		{"no python, from PATH", nil, "--no-python tool", func(c c) any { return c.Workers.Entrypoint }, "tool"},
		{"run path", nil, "--run-path s.py a", func(c c) any { return append(slices.Clone(c.Workers.Args[:2]), c.Workers.Args[3:]...) }, []string{"-u", "-c", "s.py", "a"}},
		{"run path's title", nil, "--run-path s.py a", func(c c) any { return c.Workers.Title }, "run_script_path"},
		{"run path wins", nil, "--run-path --no-python -m s.py", func(c c) any { return c.Workers.Args[1] }, "-c"},
		{"macro in the script's name", nil, "s${local_rank}.py", func(c c) any { return c.Workers.Args[1] }, "s${local_rank}.py"},
		{"code", nil, "-- -c pass", func(c c) any { return c.Workers.Args }, []string{"-u", "-c", "pass"}},
		{"code's title", nil, "-- -c pass", func(c c) any { return c.Workers.Title }, "pass"},
		{"stdin", nil, "-", func(c c) any { return c.Workers.Args }, []string{"-u", "-"}},
		{"directory", nil, ".", func(c c) any { return c.Workers.Args }, []string{"-u", "."}},

		{"devices", nil, "--devices 3 --nproc-per-node gpu s.py", func(c c) any { return c.NprocPerNode }, 3},
		{"devices, auto", []string{"MUSTER_DEVICES=2"}, "--nproc-per-node auto s.py", func(c c) any { return c.NprocPerNode }, 2},
		{"virtual rank", nil, "--virtual-local-rank s.py", func(c c) any { return c.Workers.VirtualLocalRank }, true},
		{"one worker's threads", nil, "s.py", func(c c) any { return c.Workers.OMPNumThreads }, ""},
		{"threads said", []string{"OMP_NUM_THREADS=3"}, "--nproc-per-node 2 s.py", func(c c) any { return c.Workers.OMPNumThreads }, ""},
		{"threads said to be none", []string{"OMP_NUM_THREADS="}, "--nproc-per-node 2 s.py", func(c c) any { return c.Workers.OMPNumThreads }, ""},
		{"more workers than CPUs", nil, "--nproc-per-node 5000 s.py", func(c c) any { return c.Workers.OMPNumThreads }, "1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want == nil {
				return
			}
			out := try(t, tt.env, "muster", strings.Fields(tt.args)...)
			if !out.ran || out.status != console.ExitOK {
				t.Fatalf("status %d: %s", out.status, out.stderr)
			}
			if diff := cmp.Diff(tt.want, tt.got(out.cfg)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWordsWithoutDevices(t *testing.T) {
	script(t)
	cpus, err := devices.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"cpu", "auto"} {
		out := try(t, []string{"MUSTER_DEVICES=0"}, "muster", "--nproc-per-node", word, "s.py")
		if out.cfg.NprocPerNode != len(cpus) {
			t.Errorf("%s: %d workers, want %d: %s", word, out.cfg.NprocPerNode, len(cpus), out.stderr)
		}
	}
}

// Devices come from the file system that the reader is given.
func TestWordsWithDevices(t *testing.T) {
	root := fstest.MapFS{}
	for i := range 4 {
		root[fmt.Sprintf("proc/driver/nvidia/gpus/0000:0%d:00.0/information", i)] = &fstest.MapFile{}
	}
	for _, tt := range []struct {
		word, visible string
		want          int
	}{{"gpu", "0,1,2,3,4", 4}, {"gpu", "2,1", 2}, {"auto", "3", 1}} {
		r := reader{
			values: values{"nproc-per-node": tt.word},
			lookup: func(name string) (string, bool) { return tt.visible, name == "CUDA_VISIBLE_DEVICES" },
			root:   root,
		}
		if n := r.nproc(); n != tt.want || r.errs != nil {
			t.Errorf("%s with %s: %d, %v; want %d", tt.word, tt.visible, n, r.errs, tt.want)
		}
	}
}

func TestThreads(t *testing.T) {
	script(t)
	cpus, err := devices.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	out := try(t, nil, "muster", "--nproc-per-node", "2", "s.py")
	share := len(cpus)
	if quota := cgroup.CPUQuota(os.DirFS("/")); quota > 0 {
		share = min(share, quota)
	}
	if want := fmt.Sprint(max(1, share/2)); out.cfg.Workers.OMPNumThreads != want {
		t.Errorf("%s threads, want %s", out.cfg.Workers.OMPNumThreads, want)
	}
	if out.stderr != "" {
		t.Errorf("it is not a warning: %s", out.stderr)
	}
	out = try(t, []string{"LOGLEVEL=INFO"}, "muster", "--nproc-per-node", "2", "s.py")
	if n := strings.Count(out.stderr, "\n"); n != 1 || !strings.HasPrefix(out.stderr, "I") || !strings.Contains(out.stderr, "OMP_NUM_THREADS is not set: each of the 2 workers gets") {
		t.Errorf("%d lines on stderr: %s", n, out.stderr)
	}
}

// A CPU quota bounds the share.
func TestThreadsOfQuota(t *testing.T) {
	cpus, err := devices.AllowedCPUs()
	if err != nil || len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	for quota, want := range map[int]string{1: "1", len(cpus): fmt.Sprint(len(cpus) / 2), 1000: fmt.Sprint(len(cpus) / 2)} {
		r := reader{lookup: func(string) (string, bool) { return "", false }, root: fstest.MapFS{
			"proc/self/mountinfo":   {Data: []byte("25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
			"proc/self/cgroup":      {Data: []byte("0::/\n")},
			"sys/fs/cgroup/cpu.max": {Data: fmt.Appendf(nil, "%d 100000\n", quota*100000)},
		}}
		cfg := launch.Config{NprocPerNode: 2}
		r.threads(&cfg)
		if got := cfg.Workers.OMPNumThreads; got != want {
			t.Errorf("a quota of %d CPUs: %s threads, want %s", quota, got, want)
		}
		if want := fmt.Sprintf("its share of %d CPUs", min(quota, len(cpus))); len(r.notes) != 1 || !strings.Contains(r.notes[0], want) {
			t.Errorf("a quota of %d CPUs: %q, want %q", quota, r.notes, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	script(t)
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"s.py", nil},
		{"--rdzv-backend c10d s.py", nil},
		{"--rdzv-backend c10d --node-rank 1 --master-port 5 s.py", []string{
			"--node-rank is only used by --rdzv-backend=static; ignored for c10d",
			"--master-port is only used by --rdzv-backend=static; ignored for c10d",
		}},
		{"--nnodes 2 --rdzv-backend quorum --rdzv-endpoint h s.py", []string{"the quorum has one host, and the job ends if that host is lost; name three or five with --rdzv-endpoint"}},
		{"--nnodes 2 --rdzv-backend quorum --rdzv-endpoint h,i,j s.py", nil},
		{"--nproc-per-node 1 --local-ranks-filter 3,1 s.py", []string{"--local-ranks-filter: no worker here has one of these ranks, which go from 0 to 0"}},
		{"--ranks-filter 9-12 s.py", []string{"--ranks-filter: no worker here has one of these ranks, which go from 0 to 0"}},
		{"--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint h --nproc-per-node 2 --ranks-filter 4 --tee 5:1 --redirects 2:3,7:1 s.py", []string{
			"--redirects: no worker here has one of these ranks, which go from 0 to 1", "--tee: no worker here has one of these ranks, which go from 0 to 1"}},
		{"--nproc-per-node 2 --ranks-filter 1,9 --tee 1:1,5:3 --redirects 3 --collapse s.py", nil},
		{"--collapse s.py", []string{"--collapse is only used by --tee; ignored without it"}},
		{"--nproc-per-node 1 --local-ranks-filter 3,0 s.py", nil},
		{"-m torch.distributed.run --nproc-per-node 2 s.py", []string{"torch.distributed.run starts workers of its own, as each worker would here; give muster the program that it starts"}},
		{"-m accelerate.commands.launch s.py", []string{"accelerate.commands.launch starts workers of its own, as each worker would here; give muster the program that it starts"}},
		{"s.py torchrun", nil},
		{"--hang-timeout 5 s.py", []string{"--hang-timeout: there is no py-spy, so the rank that makes the others wait may stay unknown; pip install py-spy"}},
		{"--hang-timeout 5 --autopsy-timeout 0 s.py", nil},
		{"--hang-timeout 5 --no-python ./run.sh", nil},
		{"--signals-to-handle SIGFOO,SIGTERM s.py", []string{"--signals-to-handle: 'SIGFOO' is not a signal; not handled"}},
	} {
		out := try(t, nil, "muster", strings.Fields(tt.args)...)
		var got []string
		for line := range strings.Lines(out.stderr) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), "] ")
			text, id, _ := strings.Cut(text, " [M")
			if got = append(got, text); id == "" {
				t.Errorf("no ID: %s", line)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || !out.ran {
			t.Errorf("%s (-want +got):\n%s", tt.args, diff)
		}
	}
}

func TestBadInput(t *testing.T) {
	script(t)
	tests := []struct {
		args string
		env  string
		want string // every error there is, by what it contains
	}{
		{args: "--nnodes 0 s.py", want: "--nnodes: '0' is not a number of hosts; give at least 1"},
		{args: "--nnodes 2:1 s.py", want: "--nnodes: '2:1' is not a number of hosts"},
		{args: "--nnodes x s.py", want: "--nnodes: 'x' is not in N or MIN:MAX format"},
		{args: "--nnodes 1:2:3 s.py", want: "'1:2:3' is not in N or MIN:MAX format"},
		{args: "--nnodes= s.py", want: "--nnodes: ''"},
		{args: "--nproc-per-node 0 s.py", want: "at least one worker is needed, got 0"},
		{args: "--nproc-per-node -1 s.py", want: "at least one worker is needed, got -1"},
		{args: "--nproc-per-node foo s.py", want: "unsupported value 'foo'; give a number, auto, cpu, gpu or xpu"},
		{args: "--nproc-per-node gpu s.py", env: "MUSTER_DEVICES=0", want: "Cuda is not available: no NVIDIA or AMD GPU found; --devices N"},
		{args: "--nproc-per-node xpu s.py", env: "MUSTER_DEVICES=0", want: "Xpu is not available: no Intel GPU found"},
		{args: "--nproc-per-node gpu --devices -1 s.py", want: "--devices must be >= 0, got -1"},
		{args: "", want: "there is no script to run; give one: muster run"},
		{args: "none.py", want: "there is no file 'none.py' in /"},
		{args: "tool", want: "use --no-python to run a program that is not a Python script"},
		{args: "pkg.mod", want: "use -m to run a module"},
		{args: "s${local_rank}.py --nproc-per-node 2", want: ""},
		{args: "--nproc-per-node 2 s${local_rank}.py", env: "OMP_NUM_THREADS=1", want: "there is no file 's1.py' in /"},
		{args: "s.py/x", want: "training_script 's.py/x': stat s.py/x: not a directory"},
		{args: "--no-python s.py", want: "write ./s.py for the file in this directory"},
		{args: "--no-python ./s.py", want: "cannot run ./s.py: ./s.py is not executable (mode -rw-r--r--)"},
		{args: "--no-python ./none", want: "cannot run ./none: stat ./none: no such file or directory"},
		{args: "--no-python -m s.py", want: "--no-python and --module exclude each other; leave one of them out|not in any directory of PATH"},
		{args: "s.py", env: "PYTHON_EXEC=", want: "PYTHON_EXEC is set but empty"},
		{args: "s.py", env: "PYTHON_EXEC=/no/python", want: "PYTHON_EXEC: cannot run /no/python: stat /no/python: no such file"},
		{args: "s.py", env: "PATH=/nowhere", want: "no Python interpreter: looked for python3 and python in PATH=/nowhere; set PYTHON_EXEC"},
		{args: "--nnodes 2 --node-rank 2 s.py", want: "--node-rank: want 0 to 1 for nnodes=2, got 2; `muster"},
		{args: "--redirects 4 s.py", want: "--redirects: "},
		{args: "-t x s.py", want: "--tee: "},
		{args: "--rdzv-conf a s.py", want: "--rdzv-conf: the key 'a' has no value; write KEY=VALUE"},
		{args: "--rdzv-conf user=u,password=a,S3cret,b s.py", want: "'user=u,password=***,***,***' is not in <key1>=<value1>,...,<keyN>=<valueN> format: a part with a secret (***) has no key or no value; if the secret has a comma, use password_file or token_file"},
		{args: "--rdzv-conf token:S3cret s.py", want: "'***' is not in"},
		{args: "--rdzv-conf =b,c= s.py", want: "a key is missing|the key 'c' has no value"},
		{args: "--rdzv-conf join_timeout=x --rdzv-backend c10d s.py", want: "join_timeout=x: want a whole number"},
		{args: "--health-addr 99999 s.py", want: "port 99999 is more than 65535"},
		{args: "--nnodes 2 --standalone s.py", want: "--standalone is a job of one host, and nnodes=2"},
		{args: "--rdzv-backend quorum --rdzv-endpoint h,i s.py", want: "names 2 hosts: want 3 or 5"},
		{args: "--rdzv-backend zk s.py", want: `"zk" is not known`},
		{args: "--rdzv-backend= s.py", want: "--rdzv-backend: '' is not a name; give one, or leave --rdzv-backend out"},
		{args: "s.py", env: "PET_RDZV_BACKEND=", want: "--rdzv-backend: '' is not a name (from PET_RDZV_BACKEND)"},
		{args: "--master-addr= --nnodes 2 s.py", want: "--master-addr: '' is not a name; give one, or leave --master-addr out"},
		{args: "--master-addr= --master-port 1 s.py", want: "--master-addr: '' is not a name"},
		{args: "--logs-specs= --event-log-handler= s.py", want: "--event-log-handler: '' is not a name|--logs-specs: '' is not a name"},
		{args: "--rdzv-endpoint h s.py", want: "port is missing in endpoint: h"},
		{args: "--max-restarts -1 s.py", want: "--max-restarts must be >= 0, got -1; `muster"},
		{args: "--monitor-interval 0 s.py", want: "must be a number of seconds > 0"},
		{args: "--monitor-interval -1 s.py", want: "must be a number of seconds > 0"},
		{args: "--monitor-interval nan s.py", want: "got NaN"},
		{args: "--monitor-interval inf s.py", want: "got +Inf"},
		{args: "--exit-barrier-timeout 0 s.py", want: "--exit-barrier-timeout: must be a number of seconds > 0"},
		{args: "--shutdown-timeout 15x s.py", want: "'15x' is not a time; give seconds, or a time such as 90s"},
		{args: "--shutdown-timeout nan s.py", want: "--shutdown-timeout must be non-negative and at most 3153600000, got NaN"},
		{args: "--shutdown-timeout -1 s.py", want: "--shutdown-timeout must be non-negative and at most 3153600000, got -1"},
		{args: "--shutdown-timeout 9000000000000000000 s.py", want: "--shutdown-timeout must be"},
		{args: "s.py", env: "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", want: "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x' is not a whole number"},
		{args: "s.py", env: "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-1", want: "TORCH_ELASTIC_SHUTDOWN_TIMEOUT must be non-negative"},
		{args: "--local-ranks-filter 0,x s.py", want: "'0,x' is not a list of local ranks; give one such as 0,1,2"},
		{args: "--ranks-filter 5-3 s.py", want: "--ranks-filter: '5-3' is not a list of ranks and ranges such as 3,5-7"},
		{args: "--logs-specs mine s.py", want: "Could not find entrypoint under 'torchrun.logs_specs[mine]' key: Python plug-ins cannot be loaded"},
		{args: "--event-log-handler mine s.py", want: `event log handler "mine" is not known, and handlers registered in Python cannot be loaded; give null, console`},
		{args: "--event-log-handler file --log-dir /dev/null s.py", want: "there is no log directory for events.jsonl: name a file with --event-log-file"},
		{args: "--metrics-handler statsd s.py", want: "statsd"},
		{args: "--numa-binding node --devices 1 s.py", env: "CUDA_VISIBLE_DEVICES=", want: "no accelerator available for NUMA binding"},
		{args: "--virtual-local-rank --nproc-per-node 2 s.py", env: "CUDA_VISIBLE_DEVICES=0", want: "local rank 1 has no device: CUDA_VISIBLE_DEVICES=0"},
		{args: "--signals-to-handle SIGKILL,SIGTERM s.py", want: "--signals-to-handle: SIGKILL cannot be handled"},
		{args: "--master-port 70000 s.py", want: "--master-port: want 0 to 65535, got 70000"},
		{args: "s.py", env: "LOGLEVEL=loud", want: "LOGLEVEL='loud' is not a level; give DEBUG, INFO"},
		{args: "--log-dir s.py s.py", want: "log directory s.py: s.py is a file"},
		{args: "--foo bar s.py", want: "unknown option --foo"}, // nothing about bar
		{args: "--bad --nnodes x --nproc-per-node 0 -r 9 --max-restarts -1 --rdzv-backend zk s.py",
			want: "unknown option --bad|'x' is not in N|at least one worker|--redirects|--max-restarts must|\"zk\""},
	}
	for _, tt := range tests {
		t.Run(tt.args+" "+tt.env, func(t *testing.T) {
			out := try(t, []string{tt.env}, "muster", strings.Fields(tt.args)...)
			var want []string
			if tt.want != "" {
				want = strings.Split(tt.want, "|")
			}
			got := out.problems()
			if len(want) == 0 {
				if out.status == console.ExitOK {
					return
				}
			} else if out.status != console.ExitUsage || out.ran {
				t.Errorf("status %d, ran %v", out.status, out.ran)
			}
			if len(got) != len(want) {
				t.Fatalf("%d errors, want %d:\n%s", len(got), len(want), out.stderr)
			}
			for i := range got {
				if !strings.Contains(got[i], want[i]) {
					t.Errorf("error %q, want %q", got[i], want[i])
				}
			}
		})
	}
}

// A wrong command line is also written where the caller of torchrun looks.
func TestErrorFile(t *testing.T) {
	script(t)
	path := filepath.Join(t.TempDir(), "error.json")
	try(t, []string{"TORCHELASTIC_ERROR_FILE=" + path}, "muster", "--nnodes", "x", "s.py")
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), "'x' is not in N or MIN:MAX format") {
		t.Errorf("%s (%v)", data, err)
	}
}

func TestPython(t *testing.T) {
	script(t)
	dirs := map[string]string{}
	for _, name := range []string{"venv", "conda", "link", "linkvenv", "path"} {
		dir := t.TempDir()
		dirs[name] = dir
		if err := os.Mkdir(filepath.Join(dir, "bin"), 0o777); err != nil {
			t.Fatal(err)
		}
		for _, program := range []string{"python3", "python", "torchrun", "muster"} {
			if err := os.WriteFile(filepath.Join(dir, "bin", program), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dirs["linkvenv"], "pyvenv.cfg"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dirs["conda"], "bin", "python3")); err != nil {
		t.Fatal(err)
	}
	at := func(name, program string) string { return filepath.Join(dirs[name], "bin", program) }
	venv, conda := "VIRTUAL_ENV="+dirs["venv"], "CONDA_PREFIX="+dirs["conda"]
	path := "PATH=" + filepath.Join(dirs["path"], "bin")
	tests := []struct {
		name string
		self string
		env  []string
		want string
		from string
	}{
		{"PATH", "muster", nil, at("path", "python3"), "PATH"},
		{"conda", "muster", []string{conda}, at("conda", "python"), "CONDA_PREFIX"},
		{"virtual environment first", "muster", []string{conda, venv}, at("venv", "python3"), "VIRTUAL_ENV"},
		{"environment without Python", "muster", []string{"VIRTUAL_ENV=/nowhere"}, at("path", "python3"), "PATH"},
		{"empty variable", "muster", []string{"VIRTUAL_ENV="}, at("path", "python3"), "PATH"},
		{"link", at("link", "torchrun"), nil, at("link", "python3"), "the directory of muster"},
		{"link, found in PATH", "torchrun", []string{"PATH=" + filepath.Join(dirs["link"], "bin")}, at("link", "python3"), "the directory of muster"},
		{"environment before a link elsewhere", at("link", "torchrun"), []string{venv}, at("venv", "python3"), "VIRTUAL_ENV"},
		{"link in an environment first", at("linkvenv", "torchrun"), []string{venv}, at("linkvenv", "python3"), "the directory of muster"},
		{"muster in an environment first", at("linkvenv", "muster"), []string{venv}, at("linkvenv", "python3"), "the directory of muster"},
		{"muster beside a python is not a link", at("link", "muster"), nil, at("path", "python3"), "PATH"},
		{"PYTHON_EXEC first", at("linkvenv", "torchrun"), []string{venv, "PYTHON_EXEC=" + at("conda", "python")}, at("conda", "python"), "PYTHON_EXEC"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := try(t, append([]string{path}, tt.env...), tt.self, "s.py")
			if out.cfg.Workers.Entrypoint != tt.want {
				t.Errorf("got %s, want %s\n%s", out.cfg.Workers.Entrypoint, tt.want, out.stderr)
			}
			said := try(t, append([]string{path}, tt.env...), tt.self, "--dry-run", "s.py").stderr
			if !regexp.MustCompile(`(?m)^command +` + regexp.QuoteMeta(tt.want) + ` .* ` + tt.from + `$`).MatchString(said) {
				t.Errorf("want it from %s:\n%s", tt.from, said)
			}
		})
	}
}

func FuzzNodes(f *testing.F) {
	for _, s := range []string{"1", "1:2", " 1 : 2 ", "2:1", ":", "1:", "-1", "1:2:3", "１"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := parseNodes(text)
		least, most := nodes[0], nodes[1]
		if err == nil && (least < 1 || most < least) {
			t.Errorf("%q gives %d:%d", text, least, most)
		}
		if err != nil && (least != 0 || most != 0) {
			t.Errorf("%q gives %d:%d and %v", text, least, most, err)
		}
	})
}

func FuzzNproc(f *testing.F) {
	for _, s := range []string{"1", "0", "-1", "gpu", "auto", "cpu", " 2 ", "1_0", "1e3", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := reader{values: values{"nproc-per-node": text}, lookup: func(string) (string, bool) { return "", false }, root: fstest.MapFS{}}
		if n := r.nproc(); n < 1 || r.errs != nil && n != 1 {
			t.Errorf("%q gives %d, %v", text, n, r.errs)
		}
	})
}

func FuzzConf(f *testing.F) {
	for _, s := range []string{"", "a=b", "a=b,c=d=e", "a", "=b", "a=", ",", " a = b ", "a=b,a=c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		conf, err := parseConf(text)
		if err != nil || strings.ContainsAny(text, `'"`) {
			return
		}
		var pairs []string
		for key, value := range conf {
			if key == "" || value == "" || strings.TrimSpace(key) != key || strings.TrimSpace(value) != value {
				t.Errorf("%q gives %q=%q", text, key, value)
			}
			pairs = append(pairs, key+"="+value)
		}
		again, err := parseConf(strings.Join(pairs, ","))
		if err != nil || !maps.Equal(conf, again) {
			t.Errorf("%q: %v became %v (%v)", text, conf, again, err)
		}
	})
}

func FuzzSplitList(f *testing.F) {
	for _, s := range []string{"", ",", ",,", ",,,", "a,,b,c", "a,b", "é,,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		items := splitList(text)
		if len(items) == 0 {
			t.Fatalf("%q gives nothing", text)
		}
		// An item that begins with a comma cannot be told from one before it
		// that ends with it, so only lists without such survive.
		joined := make([]string, len(items))
		for i, item := range items {
			if strings.HasPrefix(item, ",") || strings.HasSuffix(item, ",") || item == "" && len(items) > 1 {
				return
			}
			joined[i] = strings.ReplaceAll(item, ",", ",,")
		}
		if again := splitList(strings.Join(joined, ",")); !slices.Equal(items, again) {
			t.Errorf("%q: %q became %q", text, items, again)
		}
	})
}

func TestHangTimeoutAuto(t *testing.T) {
	_, cfg, errs := configured(t, "", nil, "--hang-timeout", "auto", "--no-python", "true")
	if len(errs) > 0 || cfg.HangTimeout != agent.HangAuto {
		t.Errorf("--hang-timeout auto is %v, %v, want %v", cfg.HangTimeout, errs, agent.HangAuto)
	}
}
