package launch_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/scheduler"
	"github.com/muster-run/muster/launch"
)

// srun is the environment of the second of two tasks.
var srun = []string{
	"SLURM_JOB_ID=12", "SLURM_STEP_ID=3", "SLURM_STEP_NODELIST=n[07-08]", "SLURM_STEP_NUM_NODES=2", "SLURM_NODEID=1",
	"SLURM_STEP_TASKS_PER_NODE=1(x2)", "SLURM_GPUS_ON_NODE=4",
}

func TestFromScheduler(t *testing.T) {
	const endpoint = "n07:22349"
	both := []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1}
	tests := map[string]struct {
		cfg, want launch.Config
	}{
		"srun": {launch.Config{Env: srun}, launch.Config{
			MinNodes: 2, MaxNodes: 2, RunID: "12.3", RdzvBackend: "c10d", RdzvEndpoint: endpoint, NprocPerNode: 4,
			RdzvConf: map[string]string{"is_host": "false"}, Options: agent.Options{PreemptionSignals: both},
		}},
		"what cfg says stays": {
			launch.Config{Env: srun, RunID: "mine", NprocPerNode: 2, RdzvConf: map[string]string{"is_host": "true", "join_timeout": "5"}, Options: agent.Options{PreemptionSignals: []syscall.Signal{}}},
			launch.Config{
				MinNodes: 2, MaxNodes: 2, RunID: "mine", RdzvBackend: "c10d", RdzvEndpoint: endpoint, NprocPerNode: 2,
				RdzvConf: map[string]string{"is_host": "true", "join_timeout": "5"}, Options: agent.Options{PreemptionSignals: []syscall.Signal{}},
			}},
		"nnodes":      {launch.Config{Env: srun, MinNodes: 1}, launch.Config{MinNodes: 1}},
		"endpoint":    {launch.Config{Env: srun, RdzvEndpoint: "h:1"}, launch.Config{RdzvEndpoint: "h:1"}},
		"backend":     {launch.Config{Env: srun, RdzvBackend: "c10d"}, launch.Config{RdzvBackend: "c10d"}},
		"master port": {launch.Config{Env: srun, MasterPort: 1}, launch.Config{MasterPort: 1}},
		"standalone":  {launch.Config{Env: srun, Standalone: true}, launch.Config{Standalone: true}},
		"a Default":   {func() launch.Config { c := launch.Default(); c.Env = srun; return c }(), launch.Default()},
		"plain":       {launch.Config{Env: []string{"HOME=/"}}, launch.Config{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, schedule, err := launch.FromScheduler(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			got.Env = nil
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(launch.Config{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if (schedule != nil) != (got.MaxNodes == 2) {
				t.Errorf("the schedule is %v", schedule)
			}
		})
	}
}

// What the scheduler says is a whole configuration.
func TestFromSchedulerResolves(t *testing.T) {
	cfg, schedule, err := launch.FromScheduler(launch.Config{Env: append(srun, "PATH=/bin:/usr/bin"), Entrypoint: "true"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg, err = launch.Resolve(cfg); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(schedule.String(), "Slurm says nnodes=2 (SLURM_STEP_NUM_NODES), rdzv-id=12.3 (SLURM_JOB_ID, SLURM_STEP_ID), is_host=false (SLURM_NODEID), rdzv-endpoint="+cfg.RdzvEndpoint) {
		t.Errorf("it says %s", schedule)
	}
}

func TestFromSchedulerErrors(t *testing.T) {
	_, _, err := launch.FromScheduler(launch.Config{Env: append(srun, "SLURM_STEP_TASKS_PER_NODE=2(x2)")})
	if tasks, ok := errors.AsType[*scheduler.TasksError](err); !ok || tasks.Tasks != 2 {
		t.Errorf("two tasks on a host: %v", err)
	}
	for _, path := range []string{"/nothing/there", "/dev/zero"} {
		_, _, err = launch.FromScheduler(launch.Config{Env: []string{"PBS_JOBID=1", "PBS_NODEFILE=" + path}})
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("PBS_NODEFILE=%s: %v", path, err)
		}
	}
}
