package runline

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/launch"
)

// srun is the environment of the second of two tasks.
var srun = []string{
	"SLURM_JOB_ID=12", "SLURM_STEP_ID=3", "SLURM_STEP_NODELIST=n[07-08]", "SLURM_STEP_NUM_NODES=2", "SLURM_NODEID=1",
	"SLURM_STEP_TASKS_PER_NODE=1(x2)", "SLURM_GPUS_ON_NODE=4",
}

func TestFromScheduler(t *testing.T) {
	script(t)
	two := launch.Rendezvous{Backend: "c10d", Endpoint: "n07:22349", Conf: map[string]string{"is_host": "false"}, MasterAddr: "127.0.0.1"}
	with := func(meet launch.Rendezvous, conf map[string]string) launch.Rendezvous {
		meet.Conf = conf
		return meet
	}
	own := with(launch.Default().Rendezvous, map[string]string{})
	own.Backend, own.Endpoint = "c10d", "localhost:0"
	type job struct {
		Hosts, Workers int
		RunID          string
		Rendezvous     launch.Rendezvous
		Preemption     []syscall.Signal
	}
	both := []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1}
	for name, tt := range map[string]struct {
		env  []string
		args string
		want job
		says string // how what was taken begins; "" for nothing
	}{
		"srun": {srun, "", job{2, 4, "12.3", two, both},
			"Slurm says nnodes=2 (SLURM_STEP_NUM_NODES), rdzv-id=12.3 (SLURM_JOB_ID, SLURM_STEP_ID), is_host=false (SLURM_NODEID), rdzv-endpoint=n07:22349 ("},
		"what is given stays": {srun, "--rdzv-id mine --nproc-per-node 2 --rdzv-conf is_host=true,join_timeout=5 --preemption-signals=",
			job{2, 2, "mine", with(two, map[string]string{"is_host": "true", "join_timeout": "5"}), []syscall.Signal{}},
			"Slurm says nnodes=2 (SLURM_STEP_NUM_NODES), rdzv-endpoint=n07:22349 (SLURM_STEP_NODELIST, port from the run ID)\n"},
		"nnodes":     {srun, "--nnodes 1 --rdzv-id a", job{1, 1, "a", own, nil}, ""},
		"standalone": {srun, "--standalone --rdzv-id a", job{1, 1, "a", own, nil}, ""},
		"plain":      {nil, "--rdzv-id a", job{1, 1, "a", own, nil}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := try(t, tt.env, "muster", append(strings.Fields(tt.args), "s.py")...)
			if !o.ran {
				t.Fatalf("status %d: %s", o.status, o.stderr)
			}
			cfg := o.cfg
			got := job{cfg.MaxNodes, cfg.NprocPerNode, cfg.RunID, cfg.Rendezvous, cfg.PreemptionSignals}
			got.Rendezvous.Standalone = false
			if diff := cmp.Diff(tt.want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".settings" }, cmp.Ignore())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if strings.Contains(o.stderr, "Slurm") != (tt.says != "") || !strings.Contains(o.stderr, tt.says) {
				t.Errorf("stderr says %q, want %q", o.stderr, tt.says)
			}
		})
	}
}

func TestFromSchedulerErrors(t *testing.T) {
	script(t)
	for _, tt := range []struct {
		env  []string
		want string
	}{
		{append(srun, "SLURM_STEP_TASKS_PER_NODE=2(x2)"), "srun started 2 tasks on a host"},
		{[]string{"PBS_JOBID=1", "PBS_NODEFILE=/nothing/there"}, "/nothing/there"},
		{[]string{"PBS_JOBID=1", "PBS_NODEFILE=/dev/zero"}, "/dev/zero"},
	} {
		o := try(t, tt.env, "muster", "s.py")
		if problems := o.problems(); o.ran || len(problems) != 1 || !strings.Contains(problems[0], tt.want) {
			t.Errorf("%v: %q, want one problem with %q", tt.env, problems, tt.want)
		}
	}
}

func TestExitCodeOption(t *testing.T) {
	script(t)
	for _, tt := range []struct {
		env  []string
		want string
	}{{nil, "torchrun"}, {[]string{"MUSTER_EXIT_CODE=worker"}, "worker"}} {
		if o := try(t, tt.env, "muster", "s.py"); o.exitCode != tt.want {
			t.Errorf("%v: the job runs with exit code %q, want %q", tt.env, o.exitCode, tt.want)
		}
	}
}
