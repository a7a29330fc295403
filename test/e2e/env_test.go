//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// describe runs a job of n workers that describe themselves, and returns the
// descriptions by rank.
func describe(t *testing.T, l launcher, s setup, n int, flags string, args ...string) []description {
	t.Helper()
	dir := t.TempDir()
	steps := append([]string{"dump:" + dir, "exit:0"}, args...)
	workers(t, l, s, fmt.Sprintf("--nproc-per-node %d %s", n, flags), steps...).want(0)
	all := make([]description, n)
	for rank := range all {
		b, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(rank)+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &all[rank]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// volatile are the parts of a value that differ from run to run of one and the
// same launcher.
var volatile = []struct {
	name string
	re   *regexp.Regexp
	as   string
}{
	{"TORCHELASTIC_RUN_ID", regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`), "<UUID>"},
	{"MASTER_PORT", regexp.MustCompile(`^[1-9][0-9]{3,4}$`), "<PORT>"},
	{"TORCHELASTIC_ERROR_FILE", regexp.MustCompile(`^/.*/torchelastic_[a-z0-9_]{8}/`), "<TMP>/torchelastic_<RAND8>/"},
	{"TORCHELASTIC_ERROR_FILE", regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}_`), "<UUID>_"},
	{"TORCHELASTIC_ERROR_FILE", regexp.MustCompile(`_[a-z0-9_]{8}/attempt`), "_<RAND8>/attempt"},
}

// environment is a description's environment with placeholders for what is
// volatile. A value that does not look as it should stays, and shows.
func (d description) environment() map[string]string {
	env := maps.Clone(d.Env)
	for _, v := range volatile {
		if value, ok := env[v.name]; ok {
			env[v.name] = v.re.ReplaceAllString(value, v.as)
		}
	}
	return env
}

// differences are the variables that a worker may find changed from what
// torchrun gives it, what they must be then, and why. docs/differences.md has
// the same list.
var differences = map[string]struct {
	re      *regexp.Regexp
	why     string
	witness bool // not with --collectives off
}{
	"OMP_NUM_THREADS":                 {regexp.MustCompile(`^[1-9][0-9]*$`), "a share of the cores instead of 1, where it is not set", false},
	"MASTER_ADDR":                     {regexp.MustCompile(`^127\.0\.0\.1$`), "workers of one host need no look-up of its name, and the port is open to nobody else", false},
	"MUSTER_TIMER_SOCKET":             {regexp.MustCompile(`^/.*/socket$`), "where muster.heartbeat and muster.timer find the agent", false},
	"PYTHONPATH":                      {regexp.MustCompile(`^/.*/muster-witness-[0-9]+$`), "where a worker finds what tells the agent of its collectives; a Python worker takes it out", true},
	"TORCH_FR_DUMP_TEMP_FILE":         {regexp.MustCompile(`^/.*/flight_rank_$`), "where PyTorch's flight recorder writes; not in the home directory", true},
	"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": {regexp.MustCompile(`^/.*/flight_rank_$`), "the same, as older releases read it", true},
	"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": {regexp.MustCompile(`^/.*/flight_rank_$`), "how the agent asks NCCL's flight recorder to write", true},
	"MUSTER_WORKER":                   {regexp.MustCompile(`^[0-9]+\.[0-9a-f]{6}\.[0-9]+\.[0-9]+$`), "where no control group can be made, so that what a worker has started is found again", false},
	"LC_CTYPE":                        {regexp.MustCompile(`^$`), "set by CPython's start-up in torchrun itself; a Python worker does the same for itself", false},
}

func TestEnvironmentEqualsTorchrun(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	bare := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "FOO=bar", "TMPDIR=" + home, "EMPTY=", "TORCHELASTIC_ERROR_FILE=/tmp/agent's own", "COLLECT_LESS=" + os.Getenv("COLLECT_LESS")}
	tests := []struct {
		name  string
		n     int
		flags string
		own   string // flags of muster alone
		env   []string
	}{
		{name: "plain", n: 2},
		{name: "one worker", n: 1},
		{name: "standalone", n: 2, flags: "--standalone --role trainer --max-restarts 3"},
		{name: "c10d", n: 2, flags: "--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id job1 --local-addr 127.0.0.1 --signals-to-handle SIGTERM,SIGINT"},
		{name: "variables kept", n: 2, flags: "--standalone", env: []string{
			"OMP_NUM_THREADS=3", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "CUDA_VISIBLE_DEVICES=4,5,6", "TORCHELASTIC_TIMER_FILE=/tmp/fifo", "PET_ROLE=fromenv"}},
		{name: "virtual local rank", n: 2, flags: "--standalone --virtual-local-rank", env: []string{"CUDA_VISIBLE_DEVICES=4, 5"}},
		{name: "no shared store", n: 1, flags: "--standalone", env: []string{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}},
		{name: "no files", n: 1, flags: "--standalone --log-dir /dev/null"},
		{name: "no witness", n: 2, flags: "--standalone", own: " --collectives off"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := setup{bare: slices.Concat(bare, tt.env), forked: tt.name != "plain"} // one sees what Python's start does
			args := []string{"${local_rank}", "$local_rank-$$", "${LOCAL_RANK}", "--", "a b"}
			ours := describe(t, muster(t), s, tt.n, tt.flags+tt.own, args...)
			theirs := describe(t, torchrun(t), s, tt.n, tt.flags, args...)
			for rank := range ours {
				got, want := ours[rank].environment(), theirs[rank].environment()
				for name, d := range differences {
					if got[name] != want[name] && d.re.MatchString(got[name]) && (tt.own == "" || !d.witness) {
						t.Logf("rank %d: %s is %q, torchrun's %q: %s", rank, name, got[name], want[name], d.why)
						delete(got, name)
						delete(want, name)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("rank %d: environment (-torchrun +muster)\n%s", rank, diff)
				}
				// The dump directory is the one argument that differs.
				ours[rank].Argv[2], theirs[rank].Argv[2] = "", ""
				if diff := cmp.Diff(theirs[rank].Argv, ours[rank].Argv); diff != "" {
					t.Errorf("rank %d: arguments (-torchrun +muster)\n%s", rank, diff)
				}
			}
		})
	}
}

// The golden environments are of two hosts; what does not depend on their number
// must be what one host's worker sees.
func TestEnvironmentNames(t *testing.T) {
	t.Parallel()
	s := setup{bare: []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "FOO=bar", "PYTHONWARNINGS=ignore", "TMPDIR=" + t.TempDir(), "OMP_NUM_THREADS=1", "MUSTER_COLLECTIVES=off"}}
	want := []map[string]string{}
	for rank := range 2 {
		r := strconv.Itoa(rank)
		want = append(want, map[string]string{
			"FOO": "bar", "HOME": "/", "PATH": os.Getenv("PATH"), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1",
			"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": "2",
			"MASTER_PORT": "<PORT>", "RANK": r, "ROLE_NAME": "default", "ROLE_RANK": r, "ROLE_WORLD_SIZE": "2",
			"TORCHELASTIC_ERROR_FILE":   "<TMP>/torchelastic_<RAND8>/job1_<RAND8>/attempt_0/" + r + "/error.json",
			"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "job1",
			"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "TORCHELASTIC_USE_AGENT_STORE": "True",
			"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "WORLD_SIZE": "2",
		})
	}
	for rank, d := range describe(t, muster(t), s, 2, "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --rdzv-id job1") {
		got := d.environment()
		if got["MASTER_ADDR"] == "" {
			t.Error("no MASTER_ADDR")
		}
		for _, name := range []string{"MASTER_ADDR", "TMPDIR", "MUSTER_TIMER_SOCKET"} {
			delete(got, name)
		}
		if diff := cmp.Diff(want[rank], got); diff != "" {
			t.Errorf("rank %d (-want +got)\n%s", rank, diff)
		}
	}
}

// A name that the user gave is kept; torchrun replaces it by a random one where
// the job needs no other host.
func TestRunIDIsKept(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"--rdzv-id mine", "--standalone --rdzv-id mine"} {
		for _, d := range describe(t, muster(t), setup{}, 2, flags) {
			if got := d.Env["TORCHELASTIC_RUN_ID"]; got != "mine" {
				t.Errorf("%s: TORCHELASTIC_RUN_ID=%q", flags, got)
			}
		}
	}
}

// Threads: a share of the cores where the user has not said, and what the user
// has said otherwise, were it nothing.
func TestThreads(t *testing.T) {
	t.Parallel()
	bare := []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
	for _, tt := range []struct {
		n    int
		env  []string
		want string
	}{
		{n: 1, want: ""},
		{n: 1, env: []string{"OMP_NUM_THREADS=5"}, want: "5"},
		{n: 2, env: []string{"OMP_NUM_THREADS=5"}, want: "5"},
		{n: 2, env: []string{"OMP_NUM_THREADS="}, want: ""},
		{n: 2, want: strconv.Itoa(max(1, runtime.NumCPU()/2))},
		{n: 3, want: strconv.Itoa(max(1, runtime.NumCPU()/3))},
	} {
		for _, d := range describe(t, muster(t), setup{bare: slices.Concat(bare, tt.env)}, tt.n, "--standalone") {
			if got := d.Env["OMP_NUM_THREADS"]; got != tt.want {
				t.Errorf("%d workers, %q: OMP_NUM_THREADS=%q, want %q", tt.n, tt.env, got, tt.want)
			}
		}
	}
}

// What a worker can see of itself besides its environment: session, group,
// descriptors, directory, signal dispositions.
func TestProcessEqualsTorchrun(t *testing.T) {
	t.Parallel()
	stdin, err := os.Open(script(t, "stdin", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	s := setup{dir: t.TempDir(), stdin: stdin}
	look := func(l launcher) []description {
		all := describe(t, l, s, 2, "--standalone")
		for i := range all {
			d := &all[i]
			d.Env, d.Argv = nil, nil
			for fd, to := range d.Files {
				switch {
				case regexp.MustCompile(`^/proc/\d+/fd$`).MatchString(to),
					regexp.MustCompile(`^anon_inode:|^/sys/fs/cgroup|^/sys/kernel`).MatchString(to) && fd > 2:
					delete(d.Files, fd) // the worker's own, of its language's runtime
				case fd == 1:
					d.Files[fd] = "the agent's"
				case fd == 2:
					// muster may stand between worker and console to keep the
					// last lines for the report.
					d.Files[fd] = "the agent's or a relay"
				}
			}
		}
		return all
	}
	ours, theirs := look(muster(t)), look(torchrun(t))
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("(-torchrun +muster)\n%s", diff)
	}
	if d := ours[0]; !d.Group || !d.Session || d.Dir != s.dir || d.Files[0] != stdin.Name() {
		t.Errorf("worker leads no group or session, is elsewhere, or has another stdin: %+v", d)
	}
}

// Python as the interpreter: found as torchrun finds it, unbuffered, with -m and
// with PYTHON_EXEC.
func TestPythonCommandLine(t *testing.T) {
	t.Parallel()
	l := torchrun(t)
	python := filepath.Join(filepath.Dir(l.argv[0]), "python3")
	dir := t.TempDir()
	show := script(t, "show.py", `
import os, sys
with open(sys.argv[1], "a") as f:
    f.write(repr((open("/proc/self/cmdline").read().split("\0")[:-1], sys.argv, os.getcwd())))
`)
	os.Rename(show, filepath.Join(dir, "show.py"))
	for _, tt := range []struct{ flags, program string }{
		{"", "show.py"},
		{"-m", "show"},
		{"--no-python", python},
	} {
		var got [2]string
		for i, l := range []launcher{muster(t), l} {
			out := filepath.Join(t.TempDir(), "out")
			program := []string{tt.program}
			if tt.program == python {
				program = append(program, "show.py")
			}
			program = append(program, out, "-x", "--nnodes", "${local_rank}")
			run(t, l, setup{dir: dir, env: []string{"PYTHON_EXEC=" + python}}, "--standalone "+tt.flags, program...).want(0)
			got[i] = regexp.MustCompile(regexp.QuoteMeta(out)).ReplaceAllString(contents(t, out), "OUT")
		}
		if got[0] != got[1] {
			t.Errorf("%s %s\nmuster   %s\ntorchrun %s", tt.flags, tt.program, got[0], got[1])
		}
	}
}
