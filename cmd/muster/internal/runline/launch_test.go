package runline

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/logs"
)

// A launchSample is a command line that both programs take to the point where
// workers would be started. Where they shall differ, differs says how.
type launchSample struct {
	Args    []string
	Env     map[string]string
	differs map[string]any // fields in which muster's answer is another
	rejects string         // muster rejects what torchrun takes: part of the message
	accepts bool           // muster takes what torchrun rejects
}

func line1(args string) launchSample { return launchSample{Args: strings.Fields(args)} }

// both takes a line on which the programs agree, with variables NAME=value.
func both(args string, env ...string) launchSample {
	s := line1(args)
	s.Env = map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		s.Env[name] = value
	}
	return s
}

var launchSamples = []launchSample{
	line1("s.py"),
	line1("s.py a -b --c=${local_rank}"),
	line1("--standalone s.py"),
	line1("--standalone --rdzv-backend c10d --rdzv-endpoint h:1 s.py"),
	line1("--nnodes 1 --nproc-per-node 3 s.py"),
	line1("--nnodes=1:1 --nproc_per_node=2 s.py"),
	line1("--nproc-per-node cpu s.py"),
	line1("--nproc-per-node auto s.py"),
	line1("--master-port 1234 s.py"),
	line1("--master-addr h --master-port 1234 --rdzv-id j s.py"),
	line1("--rdzv-endpoint h:1234 s.py"),
	line1("--rdzv-backend c10d s.py"),
	line1("--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id j s.py"),
	line1("--rdzv-backend c10d --rdzv-conf join_timeout=5,close_timeout=6 s.py"),
	line1("--max-restarts 3 --monitor-interval 5 s.py"),
	line1("--role r --local-addr l s.py"),
	line1("--shutdown-timeout 5 s.py"),
	both("s.py", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9"),
	line1("--signals-to-handle SIGUSR1,SIGTERM s.py"),
	line1("--log-dir l -r 3 -t 1 s.py"),
	line1("-r 0:1,1:2 -t 0:3 s.py"),
	line1("--local-ranks-filter 0,1 s.py"),
	line1("--duplicate-stdout-filters a,,b,c --duplicate-stderr-filters x s.py"),
	line1("--log-line-prefix-template ${rank} s.py"),
	both("s.py", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=$rank"),
	both("--log-line-prefix-template x s.py", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=y"),
	line1("--virtual-local-rank s.py"),
	line1("--event-log-handler console s.py"),
	line1("--logs-specs default s.py"),
	line1("-m pkg.mod a"),
	line1("--no-python tool a"),
	line1("--no-python ./run.sh -- a"),
	both("s.py", "PYTHON_EXEC=tool"),
	line1("-- s.py -- a"),
	both("s.py", "PET_NPROC_PER_NODE=2", "PET_MAX_RESTARTS=1", "PET_RDZV_ID=p", "PET_RDZV_BACKEND=c10d"),
	both("--nproc-per-node 3 s.py", "PET_NPROC_PER_NODE=2"),

	// Differences, each with its reason in docs/differences.md.
	{Args: []string{"--rdzv-id", "j", "s.py"}, differs: map[string]any{"run_id": "j"}},
	{Args: []string{"--standalone", "--rdzv-id", "j", "s.py"}, differs: map[string]any{"run_id": "j"}},
	{Args: []string{"--master-port", "0", "s.py"}, differs: map[string]any{"run_id": "<uuid>", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}},
	{Args: []string{"none.py"}, rejects: "there is no file"},
	{Args: []string{"--no-python", "none"}, rejects: "is not in any directory of PATH"},
	{Args: []string{"--nnodes", "2", "--master-port", "1", "s.py"}},
	{Args: []string{"--nproc-per-node", "0", "s.py"}, rejects: "at least one worker"}, // torchrun: a bare AssertionError, later
	{Args: []string{"--monitor-interval", "0", "s.py"}, rejects: "must be a number of seconds > 0"},
	{Args: []string{"--rdzv-backend", "zk", "s.py"}, rejects: "is not known"},
	{Args: []string{"--rdzv-backend", "etcd", "--rdzv-endpoint", "h", "s.py"}},
	{Args: []string{"--rdzv-endpoint", "h", "s.py"}, rejects: "port is missing"},
	// In upstream's tests, with these quotes: torchrun takes them for parts of the first key and the last value.
	{Args: []string{"--rdzv-backend=c10d", "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'", "s.py"},
		differs: map[string]any{"rdzv_configs": map[string]any{"join_timeout": "5", "last_call_timeout": "1", "timeout": "5"}}},
	{Args: []string{"--rdzv-backend=c10d", "--rdzv-conf=timeout=soon", "s.py"}, differs: map[string]any{"rdzv_configs": map[string]any{"timeout": "soon"}}},
	{Args: []string{"--event-log-handler", "x", "s.py"}, rejects: "is not known"},
	{Args: []string{"--signals-to-handle", "SIGKILL", "s.py"}, rejects: "cannot be handled"},
	{Args: []string{"--master-port", "70000", "s.py"}, rejects: "want 0 to 65535"},
	{Args: []string{"--log-dir", "l", "-r", "10:1", "s.py"}, accepts: true}, // ranks of any number of digits
	{Args: []string{"s.py", "--nproc", "2"}, accepts: true},

	// Rejected by both.
	line1("--nnodes 0 s.py"),
	line1("--nnodes 2:1 s.py"),
	line1("--nnodes x s.py"),
	line1("--nnodes 1:1:1 s.py"),
	line1("--nproc-per-node foo s.py"),
	line1("--nproc-per-node gpu s.py"),
	line1("--nproc-per-node xpu s.py"),
	line1("--max-restarts -1 s.py"),
	line1("--shutdown-timeout -1 s.py"),
	both("s.py", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x"),
	line1("--rdzv-conf a s.py"),
	line1("--rdzv-conf =a s.py"),
	line1("--rdzv-conf a= s.py"),
	line1("--local-ranks-filter 0,x s.py"),
	line1("-r 4 s.py"),
	line1("-t x s.py"),
	line1("--logs-specs mine s.py"),
	line1("--no-python -m s.py"),
	line1("--bogus s.py"),
}

// launchFields shows a Config as the judge shows torchrun's.
func launchFields(cfg launch.Config) map[string]any {
	std := func(spec logs.StdSpec) []int { return []int{int(spec.For(0)), int(spec.For(1))} }
	template := any(cfg.Logs.LinePrefixTemplate)
	if template == "" {
		template = nil
	}
	filter := any(nil)
	if cfg.Logs.LocalRanksFilter != nil {
		filter = cfg.Logs.LocalRanksFilter
	}
	localAddr := any(cfg.Rendezvous.LocalAddr)
	if localAddr == "" {
		localAddr = nil
	}
	return map[string]any{
		"min_nodes": cfg.MinNodes, "max_nodes": cfg.MaxNodes, "nproc_per_node": cfg.NprocPerNode,
		"run_id": anyUUID.ReplaceAllString(cfg.RunID, "<uuid>"), "role": cfg.Workers.Role,
		"rdzv_backend": cfg.Rendezvous.Backend, "rdzv_endpoint": cfg.Rendezvous.Endpoint, "rdzv_configs": cfg.Rendezvous.Conf,
		"max_restarts":     cfg.MaxRestarts,
		"shutdown_timeout": cfg.ShutdownTimeout.Seconds(), "local_addr": localAddr,
		"log_line_prefix_template": template, "event_log_handler": cfg.Records.EventLogHandler,
		"signals_to_handle": cfg.SignalsText, "virtual_local_rank": cfg.Workers.VirtualLocalRank,
		"duplicate_stdout_filters": append([]string{}, cfg.Logs.DuplicateStdoutFilters...),
		"duplicate_stderr_filters": append([]string{}, cfg.Logs.DuplicateStderrFilters...),
		"redirects":                std(cfg.Logs.Redirects),
		"tee":                      std(cfg.Logs.Tee),
		"local_ranks_filter":       filter, "entrypoint": cfg.Workers.Entrypoint, "args": append([]string{}, cfg.Workers.Args...),
		"log_dir": cfg.Logs.Dir,
	}
}

var anyUUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// The judge answers with the LaunchConfig that torchrun would launch.
const launchJudge = `
import contextlib, io, json, os, re, sys
import torch.distributed.run as run
from torch.distributed.elastic.multiprocessing import Std
python = sys.argv[1]
sys.executable = python
captured = None
class Launch:
    def __init__(self, config, entrypoint):
        self.config, self.entrypoint = config, entrypoint
    def __call__(self, *args):
        global captured
        captured = (self.config, self.entrypoint, list(args))
run.elastic_launch = Launch
def std(value, rank):
    return int(value.get(rank, Std.NONE) if isinstance(value, dict) else value)
clean = dict(os.environ)
answers = []
for sample in json.load(sys.stdin):
    os.environ.clear(); os.environ.update(clean); os.environ.update(sample["Env"] or {})
    captured = None
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            run.run(run.parse_args(sample["Args"]))
    except BaseException as e:
        answers.append(None)
        continue
    c, entrypoint, args = captured
    names = ["min_nodes", "max_nodes", "nproc_per_node", "run_id", "role", "rdzv_backend", "rdzv_endpoint", "rdzv_configs", "max_restarts",
        "shutdown_timeout", "local_addr", "log_line_prefix_template", "event_log_handler", "signals_to_handle",
        "virtual_local_rank", "duplicate_stdout_filters", "duplicate_stderr_filters"]
    answer = {n: getattr(c, n) for n in names}
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", c.run_id):
        answer["run_id"] = "<uuid>"
    for key in "timeout", "rank":
        answer["rdzv_configs"].pop(key, None)
    logs = c.logs_specs
    answer.update(redirects=[std(logs._redirects, r) for r in (0, 1)], tee=[std(logs._tee, r) for r in (0, 1)],
        local_ranks_filter=None if logs._local_ranks_filter is None else sorted(logs._local_ranks_filter),
        log_dir="" if "/torchelastic_" in logs._root_log_dir else logs._root_log_dir, entrypoint=entrypoint, args=args)
    answers.append(answer)
print(json.dumps(answers))
`

func TestLaunchAsTorchrun(t *testing.T) {
	python := pypeer.Python(t)
	script(t)
	dir := bin(t)
	own := filepath.Join(dir, "python3")

	input, err := json.Marshal(launchSamples)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", launchJudge, own)
	cmd.Stdin = strings.NewReader(string(input))
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1", "TMPDIR="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answers []map[string]any
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	if len(answers) == 0 || answers[0] == nil {
		t.Fatalf("torchrun does not take the first line: %s", out)
	}
	for i, s := range launchSamples {
		t.Run(strings.Join(s.Args, " "), func(t *testing.T) {
			env := []string{"PATH=" + dir, "OMP_NUM_THREADS=1", "MUSTER_DEVICES=0"}
			for name, value := range s.Env {
				env = append(env, name+"="+value)
			}
			got := try(t, env, "muster", s.Args...)
			want := answers[i]
			switch {
			case s.rejects != "":
				if problems := got.problems(); got.ran || len(problems) != 1 || !strings.Contains(problems[0], s.rejects) {
					t.Errorf("ran %v: %q, want %q", got.ran, problems, s.rejects)
				}
				return
			case s.accepts:
				if want != nil || !got.ran {
					t.Errorf("torchrun's answer is %v, muster says %s", want, got.stderr)
				}
				return
			case want == nil:
				if got.ran {
					t.Errorf("torchrun rejects it, muster does not")
				}
				return
			case !got.ran:
				t.Fatalf("torchrun takes it, muster says %s", got.stderr)
			}
			maps.Copy(want, s.differs)
			fields := jsonValue(t, launchFields(got.cfg)).(map[string]any)
			if diff := cmp.Diff(want, fields); diff != "" {
				t.Errorf("(-torchrun +muster):\n%s", diff)
			}
		})
	}
}
