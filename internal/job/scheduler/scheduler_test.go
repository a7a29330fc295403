package scheduler_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/scheduler"
)

// A setting is an environment, one NAME=value a line, with the files and the name
// of the host.
type setting struct {
	env      string
	files    map[string]string
	host     string
	terminal bool
}

func (s setting) detect() (*scheduler.Job, error) {
	env := map[string]string{}
	for line := range strings.Lines(s.env) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[name] = value
		}
	}
	return scheduler.Detect(scheduler.Input{
		Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if text, ok := s.files[path]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
		Hostname: func() (string, error) { return s.host, nil },
		Terminal: s.terminal,
	})
}

type (
	text   = scheduler.Fact[string]
	number = scheduler.Fact[int]
)

// What srun of Slurm 22.05 gives to a task of `sbatch --nodes=2 --gpus-per-node=4`.
const srunTask = `
	CUDA_VISIBLE_DEVICES=0,1,2,3
	SLURMD_NODENAME=gpu008
	SLURM_CLUSTER_NAME=hpc
	SLURM_CPUS_ON_NODE=64
	SLURM_GPUS_ON_NODE=4
	SLURM_GPUS_PER_NODE=4
	SLURM_GTIDS=1
	SLURM_JOBID=81234
	SLURM_JOB_CPUS_PER_NODE=64(x2)
	SLURM_JOB_ID=81234
	SLURM_JOB_NODELIST=gpu[007-008]
	SLURM_JOB_NUM_NODES=2
	SLURM_LAUNCH_NODE_IPADDR=10.1.0.7
	SLURM_LOCALID=0
	SLURM_NNODES=2
	SLURM_NODEID=1
	SLURM_NODELIST=gpu[007-008]
	SLURM_NPROCS=2
	SLURM_NTASKS=2
	SLURM_NTASKS_PER_NODE=1
	SLURM_PROCID=1
	SLURM_STEPID=0
	SLURM_STEP_GPUS=0,1,2,3
	SLURM_STEP_ID=0
	SLURM_STEP_NODELIST=gpu[007-008]
	SLURM_STEP_NUM_NODES=2
	SLURM_STEP_NUM_TASKS=2
	SLURM_STEP_TASKS_PER_NODE=1(x2)
	SLURM_TASKS_PER_NODE=1(x2)
`

// What mpirun of Open MPI 4.1 gives to a rank.
const openMPIRank = `
	OMPI_COMM_WORLD_SIZE=3
	OMPI_COMM_WORLD_RANK=2
	OMPI_COMM_WORLD_LOCAL_SIZE=1
	OMPI_COMM_WORLD_LOCAL_RANK=0
	OMPI_COMM_WORLD_NODE_RANK=0
	OMPI_UNIVERSE_SIZE=3
	OMPI_MCA_ess_base_jobid=1409286145
	OMPI_MCA_orte_hnp_uri=1409286144.0;tcp://10.0.0.1:43211
	PMIX_NAMESPACE=1409286145
	PMIX_RANK=2
`

// What mpiexec of MPICH 4 gives to a rank.
const hydraRank = `
	PMI_RANK=0
	PMI_FD=6
	PMI_SIZE=2
	MPI_LOCALRANKID=0
	MPI_LOCALNRANKS=1
	HYDI_CONTROL_FD=5
`

const lsfScript = `
	LSB_JOBID=9001
	LSB_JOBINDEX=0
	LSB_HOSTS=hostB hostB hostA hostA hostA
	LSB_MCPU_HOSTS=hostB 2 hostA 3
	LSB_DJOB_HOSTFILE=/home/u/.lsbatch/1.hostfile
	LSB_DJOB_NUMPROC=5
`

const pbsTask = `
	PBS_ENVIRONMENT=PBS_BATCH
	PBS_JOBID=4711.pbs01
	PBS_NODEFILE=/var/spool/pbs/aux/4711.pbs01
	PBS_NODENUM=1
	PBS_TASKNUM=3
	PBS_O_HOST=login1
`

var pbsFiles = map[string]string{"/var/spool/pbs/aux/4711.pbs01": "nid001.cluster\nnid001.cluster\nnid004.cluster\nnid004.cluster\n"}

const indexedPod = `
	JOB_COMPLETION_INDEX=3
	MUSTER_NNODES=4
	KUBERNETES_SERVICE_HOST=10.96.0.1
	NVIDIA_VISIBLE_DEVICES=GPU-1b2c,GPU-3d4e
`

var podFiles = map[string]string{"/etc/hosts": `# Kubernetes-managed hosts file.
127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
10.244.1.7	train-workers-0-3.train.default.svc.cluster.local	train-workers-0-3
`}

// without removes variables.
func without(env string, names ...string) string {
	var kept strings.Builder
	for line := range strings.Lines(env) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		drop := false
		for _, n := range names {
			drop = drop || n == name
		}
		if !drop {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func TestDetect(t *testing.T) {
	tests := map[string]struct {
		setting
		want *scheduler.Job
	}{
		"plain": {setting{env: "HOME=/root\nCUDA_VISIBLE_DEVICES=0,1\nMASTER_ADDR=h\nPMIX_RANK=0"}, nil},
		"srun": {setting{env: srunTask}, &scheduler.Job{
			Scheduler: "Slurm", RunID: text{"81234.0", "SLURM_JOB_ID, SLURM_STEP_ID"},
			Nodes: number{2, "SLURM_STEP_NUM_NODES"}, NodeRank: number{1, "SLURM_NODEID"},
			Host: text{"gpu007", "SLURM_STEP_NODELIST"}, Port: number{21361, "the run ID"},
			GPUs: number{4, "CUDA_VISIBLE_DEVICES"},
		}},
		"srun on one host of the job": {setting{env: srunTask + "SLURM_STEP_ID=3\nSLURM_STEP_NODELIST=gpu008\nSLURM_STEP_NUM_NODES=1\nSLURM_NODEID=0\nSLURM_STEP_TASKS_PER_NODE=1"}, &scheduler.Job{
			Scheduler: "Slurm", RunID: text{"81234.3", "SLURM_JOB_ID, SLURM_STEP_ID"},
			Nodes: number{1, "SLURM_STEP_NUM_NODES"}, NodeRank: number{0, "SLURM_NODEID"},
			GPUs: number{4, "CUDA_VISIBLE_DEVICES"},
		}},
		"srun without GPUs of its own": {setting{env: without(srunTask, "CUDA_VISIBLE_DEVICES")}, &scheduler.Job{
			Scheduler: "Slurm", RunID: text{"81234.0", "SLURM_JOB_ID, SLURM_STEP_ID"},
			Nodes: number{2, "SLURM_STEP_NUM_NODES"}, NodeRank: number{1, "SLURM_NODEID"},
			Host: text{"gpu007", "SLURM_STEP_NODELIST"}, Port: number{21361, "the run ID"},
			GPUs: number{4, "SLURM_GPUS_ON_NODE"},
		}},
		"srun with PMI-2": {setting{env: srunTask + "PMI_RANK=1\nPMI_SIZE=2\nPMI_FD=9"}, &scheduler.Job{
			Scheduler: "Slurm", RunID: text{"81234.0", "SLURM_JOB_ID, SLURM_STEP_ID"},
			Nodes: number{2, "SLURM_STEP_NUM_NODES"}, NodeRank: number{1, "SLURM_NODEID"},
			Host: text{"gpu007", "SLURM_STEP_NODELIST"}, Port: number{21361, "the run ID"},
			GPUs: number{4, "CUDA_VISIBLE_DEVICES"},
		}},
		"batch script of one host": {setting{env: "SLURM_JOB_ID=7\nSLURM_JOB_NODELIST=n3\nSLURM_JOB_NUM_NODES=1\nSLURMD_NODENAME=n3\nSLURM_PROCID=0\nSLURM_GPUS_ON_NODE=2\nSLURM_STEP_ID=4294967291"}, &scheduler.Job{
			Scheduler: "Slurm", RunID: text{"7", "SLURM_JOB_ID"}, Nodes: number{1, "SLURM_JOB_NUM_NODES"},
			NodeRank: number{0, "SLURM_JOB_NUM_NODES"}, GPUs: number{2, "SLURM_GPUS_ON_NODE"},
		}},
		"salloc's shell on the login node": {setting{env: "SLURM_JOB_ID=7\nSLURM_JOB_NODELIST=n3\nSLURM_JOB_NUM_NODES=1"}, nil},
		"worker of a job under srun":       {setting{env: srunTask + "TORCHELASTIC_RUN_ID=81234.0"}, nil},
		"Open MPI": {setting{env: openMPIRank + "MASTER_ADDR=10.0.0.1\nMASTER_PORT=4000"}, &scheduler.Job{
			Scheduler: "Open MPI", RunID: text{"1409286145", "PMIX_NAMESPACE"},
			Nodes: number{3, "OMPI_COMM_WORLD_SIZE"}, NodeRank: number{2, "OMPI_COMM_WORLD_RANK"},
			Host: text{"10.0.0.1", "MASTER_ADDR"}, Port: number{4000, "MASTER_PORT"},
		}},
		"Open MPI in a job of Slurm": {setting{env: openMPIRank + "SLURM_JOB_ID=5\nSLURM_JOB_NODELIST=a[1-2],b1\nSLURM_NODEID=1\nSLURM_STEP_ID=0"}, &scheduler.Job{
			Scheduler: "Open MPI", RunID: text{"1409286145", "PMIX_NAMESPACE"},
			Nodes: number{3, "OMPI_COMM_WORLD_SIZE"}, NodeRank: number{2, "OMPI_COMM_WORLD_RANK"},
			Host: text{"a1", "SLURM_JOB_NODELIST"}, Port: number{24215, "the run ID"},
		}},
		"MPICH in a job of PBS": {setting{env: hydraRank + pbsTask, files: pbsFiles, host: "nid001"}, &scheduler.Job{
			Scheduler: "mpiexec", RunID: text{"4711.pbs01", "PBS_JOBID"},
			Nodes: number{2, "PMI_SIZE"}, NodeRank: number{0, "PMI_RANK"},
			Host: text{"nid001.cluster", "PBS_NODEFILE"}, Port: number{22400, "the run ID"},
		}},
		"MPICH on one host": {setting{env: "PMI_RANK=0\nPMI_SIZE=1\nMPI_LOCALNRANKS=1"}, &scheduler.Job{
			Scheduler: "mpiexec", RunID: text{"mpi", "no variable has a name for the job"},
			Nodes: number{1, "PMI_SIZE"}, NodeRank: number{0, "PMI_RANK"},
		}},
		"LSF": {setting{env: lsfScript, host: "hostA.lab"}, &scheduler.Job{
			Scheduler: "LSF", RunID: text{"9001", "LSB_JOBID"},
			Nodes: number{2, "LSB_MCPU_HOSTS"}, NodeRank: number{1, "LSB_MCPU_HOSTS and the host's name"},
			Host: text{"hostB", "LSB_MCPU_HOSTS"}, Port: number{23423, "the run ID"},
		}},
		"an element of LSF's job array, by the host file": {
			setting{env: without(lsfScript, "LSB_HOSTS", "LSB_MCPU_HOSTS") + "LSB_JOBINDEX=4", host: "hostB",
				files: map[string]string{"/home/u/.lsbatch/1.hostfile": "hostB\nhostB\n"}},
			&scheduler.Job{
				Scheduler: "LSF", RunID: text{"9001.4", "LSB_JOBID, LSB_JOBINDEX"},
				Nodes: number{1, "LSB_DJOB_HOSTFILE"}, NodeRank: number{0, "LSB_DJOB_HOSTFILE and the host's name"},
			}},
		"LSF by LSB_HOSTS": {setting{env: without(lsfScript, "LSB_MCPU_HOSTS"), host: "hostB"}, &scheduler.Job{
			Scheduler: "LSF", RunID: text{"9001", "LSB_JOBID"},
			Nodes: number{2, "LSB_HOSTS"}, NodeRank: number{0, "LSB_HOSTS and the host's name"},
			Host: text{"hostB", "LSB_HOSTS"}, Port: number{23423, "the run ID"},
		}},
		"PBS": {setting{env: pbsTask, host: "nid004", files: pbsFiles}, &scheduler.Job{
			Scheduler: "PBS", RunID: text{"4711.pbs01", "PBS_JOBID"},
			Nodes: number{2, "PBS_NODEFILE"}, NodeRank: number{1, "PBS_NODEFILE and the host's name"},
			Host: text{"nid001.cluster", "PBS_NODEFILE"}, Port: number{22400, "the run ID"},
		}},
		"indexed Job": {setting{env: indexedPod, files: podFiles, host: "train-workers-0-3"}, &scheduler.Job{
			Scheduler: "Kubernetes", RunID: text{"train-workers-0", "the pod's name"},
			Nodes: number{4, "MUSTER_NNODES"}, NodeRank: number{3, "JOB_COMPLETION_INDEX"},
			Host: text{"train-workers-0-0.train.default.svc.cluster.local", "/etc/hosts"}, Port: number{29400, "c10d's default"}, Apart: true,
			GPUs: number{2, "NVIDIA_VISIBLE_DEVICES"},
		}},
		"indexed Job of independent pods": {setting{env: without(indexedPod, "MUSTER_NNODES"), host: "train-3"}, nil},
		"indexed Job of one pod": {setting{env: "JOB_COMPLETION_INDEX=0\nMUSTER_NNODES=1\nNVIDIA_VISIBLE_DEVICES=all", host: "t-0"}, &scheduler.Job{
			Scheduler: "Kubernetes", RunID: text{"t", "the pod's name"},
			Nodes: number{1, "MUSTER_NNODES"}, NodeRank: number{0, "JOB_COMPLETION_INDEX"},
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			job, err := tt.detect()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, job); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestDetectErrors(t *testing.T) {
	tests := map[string]struct {
		setting
		want []string // parts of the error
	}{
		"no list of hosts":      {setting{env: "SLURM_JOB_ID=1\nSLURM_STEP_ID=0\nSLURM_NNODES=2\nSLURM_NODEID=0"}, []string{"SLURM_STEP_NODELIST is not set", "--standalone"}},
		"everything is missing": {setting{env: "SLURM_JOB_ID=1\nSLURM_STEP_ID=0"}, []string{"SLURM_STEP_NUM_NODES or SLURM_JOB_NUM_NODES", "SLURM_NODEID is not set, and SLURM_STEP_NODELIST is not set"}},
		"contradiction":         {setting{env: srunTask + "SLURM_STEP_NUM_NODES=3"}, []string{`SLURM_STEP_NODELIST="gpu[007-008]" names 2 hosts, SLURM_STEP_NUM_NODES=3`}},
		"rank out of range":     {setting{env: srunTask + "SLURM_NODEID=2"}, []string{"SLURM_NODEID=2 with SLURM_STEP_NUM_NODES=2"}},
		"no number":             {setting{env: srunTask + "SLURM_NODEID=x"}, []string{`SLURM_NODEID="x": want a number from 0 on`}},
		"broken list":           {setting{env: srunTask + "SLURM_STEP_NODELIST=gpu[7-"}, []string{"a bracket is not closed"}},
		"broken counts":         {setting{env: srunTask + "SLURM_STEP_TASKS_PER_NODE=1(y2)"}, []string{"SLURM_STEP_TASKS_PER_NODE", "N(xTIMES)"}},
		"outside of srun": {setting{env: "SLURM_JOB_ID=9\nSLURM_NNODES=4\nSLURMD_NODENAME=n1\nSLURM_CPUS_ON_NODE=16"},
			[]string{"4 hosts (SLURM_NNODES)", "this one only; use: srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=16 muster run", "--standalone"}},
		"Open MPI does not say where": {setting{env: openMPIRank}, []string{"OMPI_COMM_WORLD_SIZE=3", "mpirun -x MASTER_ADDR=HOST"}},
		"Open MPI half set":           {setting{env: "OMPI_COMM_WORLD_RANK=1"}, []string{"OMPI_COMM_WORLD_SIZE is not set"}},
		"ranks on fewer hosts":        {setting{env: openMPIRank + "SLURM_JOB_NODELIST=a[1-4]"}, []string{"SLURM_JOB_NODELIST names 4 hosts, but Open MPI has started 3 ranks"}},
		"rank 0 elsewhere":            {setting{env: hydraRank + pbsTask, files: pbsFiles, host: "nid004"}, []string{`rank 0 (PMI_RANK) runs on "nid004", but PBS_NODEFILE begins with "nid001.cluster"`}},
		"port":                        {setting{env: openMPIRank + "MASTER_ADDR=h\nMASTER_PORT=99999"}, []string{"MASTER_PORT=99999"}},
		"no node file":                {setting{env: "PBS_JOBID=1"}, []string{"PBS_NODEFILE is not"}},
		"node file is gone":           {setting{env: pbsTask}, []string{"PBS_NODEFILE: open /var/spool/pbs/aux/4711.pbs01"}},
		"node file is empty":          {setting{env: pbsTask, files: map[string]string{"/var/spool/pbs/aux/4711.pbs01": "\n"}}, []string{"PBS_NODEFILE=\"/var/spool/pbs/aux/4711.pbs01\": no host"}},
		"not on a host of the job":    {setting{env: pbsTask, files: pbsFiles, host: "login1"}, []string{`"login1", is not among the 2 hosts of PBS_NODEFILE`}},
		"LSF without hosts":           {setting{env: "LSB_JOBID=1"}, []string{"none of LSB_DJOB_HOSTFILE"}},
		"LSF without a number":        {setting{env: "LSB_JOBID=1\nLSB_MCPU_HOSTS=a 1 b"}, []string{`the number of slots of "b" is missing`}},
		"not an indexed Job":          {setting{env: "MUSTER_NNODES=2", host: "x"}, []string{"JOB_COMPLETION_INDEX is not set"}},
		"no headless service":         {setting{env: indexedPod, files: map[string]string{"/etc/hosts": "10.0.0.1 train-workers-0-3\n"}, host: "train-workers-0-3"}, []string{"headless service"}},
		"hostNetwork":                 {setting{env: indexedPod, files: podFiles, host: "node17"}, []string{`"node17" does not end in -3`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			job, err := tt.detect()
			if err == nil {
				t.Fatalf("got %+v, want an error", job)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error %q does not say %q", err, part)
				}
			}
		})
	}
}

// A command typed in the shell of `srun --pty` is a job of that host, however many tasks the step
// has. A step that is started in the shell inherits the variable and has no terminal.
func TestShellOfSrun(t *testing.T) {
	env := srunTask + "SLURM_STEP_TASKS_PER_NODE=8(x2)\nSLURM_PTY_PORT=41234"
	job, err := setting{env: env, terminal: true}.detect()
	if err != nil || job == nil || job.Nodes.Value != 1 || job.RunID.Value != "81234" || job.GPUs.Value != 4 {
		t.Errorf("in the shell: %+v, %v", job, err)
	}
	for _, s := range []setting{{env: env}, {env: without(env, "SLURM_PTY_PORT"), terminal: true}} {
		if job, err := s.detect(); err == nil {
			t.Errorf("a step: %+v", job)
		}
	}
}

// Two processes on one host are refused with the line to use.
func TestTasks(t *testing.T) {
	tests := map[string]struct {
		env   string
		tasks int
		from  string
		use   string
	}{
		"srun -n4 -N2":    {srunTask + "SLURM_STEP_TASKS_PER_NODE=2(x2)", 2, "SLURM_STEP_TASKS_PER_NODE=2(x2)", "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 muster run ..."},
		"on another host": {srunTask + "SLURM_STEP_TASKS_PER_NODE=1,3", 3, "SLURM_STEP_TASKS_PER_NODE=1,3", "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 muster run ..."},
		"an old Slurm":    {without(srunTask, "SLURM_STEP_TASKS_PER_NODE", "SLURM_CPUS_ON_NODE") + "SLURM_NTASKS_PER_NODE=8", 8, "SLURM_NTASKS_PER_NODE=8", "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 muster run ..."},
		"local task 1":    {without(srunTask, "SLURM_STEP_TASKS_PER_NODE") + "SLURM_LOCALID=1", 2, "SLURM_LOCALID=1", "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 muster run ..."},
		"Open MPI":        {openMPIRank + "OMPI_COMM_WORLD_LOCAL_SIZE=3", 3, "OMPI_COMM_WORLD_LOCAL_SIZE=3", "mpirun --map-by ppr:1:node --bind-to none muster run ..."},
		"MPICH":           {hydraRank + "MPI_LOCALNRANKS=2", 2, "MPI_LOCALNRANKS=2", "mpiexec -ppn 1 muster run ..."},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			job, err := setting{env: tt.env}.detect()
			if !strings.HasSuffix(err.Error(), " (or --standalone for this host alone)") {
				t.Errorf("the error %v does not name --standalone", err)
			}
			tasks, ok := errors.AsType[*scheduler.TasksError](err)
			if !ok {
				t.Fatalf("got %+v and the error %v, want a TasksError", job, err)
			}
			got := [3]any{tasks.Tasks, tasks.From, tasks.Use}
			if diff := cmp.Diff([3]any{tt.tasks, tt.from, tt.use}, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
