package scheduler

import (
	"fmt"
	"hash/fnv"
	"strconv"
)

// firstSpecialStep is the first number of Slurm's steps that are no srun: the
// batch script, an interactive shell, external processes.
// Source: SLURM_MAX_NORMAL_STEP_ID in slurm/slurm.h.
const firstSpecialStep = 0xfffffff0

// slurm reads what srun tells its tasks. A batch script, or a shell on a node of the
// job, is a job of its own if there is one node; with more it is a mistake, since
// nobody starts the others.
// Source: "OUTPUT ENVIRONMENT VARIABLES" in srun(1) and sbatch(1).
func slurm(v vars) (*Job, error) {
	const name = "Slurm"
	id := v.first("SLURM_JOB_ID", "SLURM_JOBID")
	if id.From == "" {
		return nil, nil
	}
	step := v.first("SLURM_STEP_ID", "SLURM_STEPID")
	if n, err := strconv.ParseUint(step.Value, 10, 64); step.From != "" && (err != nil || n >= firstSpecialStep) {
		step = Fact[string]{}
	}
	if step.From == "" {
		return slurmScript(v, id)
	}
	if pty := v.first("SLURM_PTY_PORT"); pty.From != "" && v.Terminal { // of a step in that shell there is none
		gpus, err := slurmGPUs(v)
		return &Job{Scheduler: name, RunID: id, Nodes: Fact[int]{1, "a shell of srun --pty, " + pty.From},
			NodeRank: Fact[int]{0, pty.From}, GPUs: gpus}, err
	}
	job := &Job{Scheduler: name, RunID: Fact[string]{id.Value + "." + step.Value, id.From + ", " + step.From}}
	var errs [5]error
	var hosts []string
	list := v.first("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
	job.Nodes, errs[0] = v.number(1, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
	job.NodeRank, errs[1] = v.number(0, "SLURM_NODEID")
	if list.From == "" {
		errs[2] = fmt.Errorf("SLURM_STEP_NODELIST is not set")
	} else if hosts, errs[2] = expandHostlist(list.Value); errs[2] == nil && errs[0] == nil &&
		len(hosts) != job.Nodes.Value {
		errs[2] = fmt.Errorf("%s=%s names %d hosts, %s=%d", list.From, show(list.Value), len(hosts), job.Nodes.From,
			job.Nodes.Value)
	}
	errs[3] = within(job.NodeRank, job.Nodes)
	job.GPUs, errs[4] = slurmGPUs(v)
	if err := broken(name, errs[:]...); err != nil {
		return nil, err
	}
	if err := slurmTasks(v, job.Nodes.Value); err != nil {
		return nil, err
	}
	job.meet(Fact[string]{hosts[0], list.From})
	return job, nil
}

// meet makes the first host the place where the hosts meet, at a port derived from what
// only this job is called.
func (job *Job) meet(host Fact[string]) {
	if job.Nodes.Value > 1 {
		h := fnv.New32a()
		h.Write([]byte(job.RunID.Value))
		job.Host, job.Port = host, Fact[int]{FirstPort + int(h.Sum32()%(LastPort-FirstPort+1)), "the run ID"}
	}
}

// slurmScript is the batch script or a shell in an allocation, outside of srun.
func slurmScript(v vars, id Fact[string]) (*Job, error) {
	if nodes, err := v.optional(1, "SLURM_JOB_NUM_NODES", "SLURM_NNODES"); err == nil && nodes.Value <= 1 &&
		!v.has("SLURMD_NODENAME") {
		return nil, nil // salloc's shell on the login node: not on a host of the job
	}
	nodes, err := v.number(1, "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
	if err != nil {
		return nil, broken("Slurm", err)
	}
	if nodes.Value > 1 {
		return nil, fmt.Errorf("job %s of Slurm has %d hosts (%s), and muster was started on this one only; use: %s (or "+
			"--standalone for this host alone)",
			id.Value, nodes.Value, nodes.From, srunLine(v, nodes.Value))
	}
	gpus, err := slurmGPUs(v)
	if err != nil {
		return nil, broken("Slurm", err)
	}
	return &Job{
		Scheduler: "Slurm", RunID: id, Nodes: nodes, NodeRank: Fact[int]{0, nodes.From}, GPUs: gpus,
	}, nil
}

// slurmTasks checks that no host of the step has several tasks.
func slurmTasks(v vars, nodes int) error {
	most := Fact[int]{}
	if text := v.first("SLURM_STEP_TASKS_PER_NODE"); text.From != "" {
		n, err := largestCount(text.Value)
		if err != nil {
			return broken("Slurm", fmt.Errorf("%s: %w", text.From, err))
		}
		most = Fact[int]{n, text.From + "=" + text.Value}
	} else if n, err := v.optional(1, "SLURM_NTASKS_PER_NODE"); err == nil && n.From != "" {
		most = Fact[int]{n.Value, n.From + "=" + strconv.Itoa(n.Value)}
	}
	if local, err := v.optional(0, "SLURM_LOCALID"); err == nil && local.Value >= max(most.Value, 1) {
		most = Fact[int]{local.Value + 1, "SLURM_LOCALID=" + strconv.Itoa(local.Value)}
	}
	if most.Value <= 1 {
		return nil
	}
	return &TasksError{Scheduler: "srun", Tasks: most.Value, From: most.From, Use: srunLine(v, nodes)}
}

// srunLine is the srun that starts one agent on each host with all of its CPUs.
func srunLine(v vars, nodes int) string {
	line := fmt.Sprintf("srun --nodes=%d --ntasks=%d --ntasks-per-node=1", nodes, nodes)
	if cpus, err := v.optional(1, "SLURM_CPUS_ON_NODE"); err == nil && cpus.From != "" {
		line += fmt.Sprintf(" --cpus-per-task=%d", cpus.Value)
	}
	return line + " muster run ..."
}

// slurmGPUs counts the GPUs of this host's part of the step.
func slurmGPUs(v vars) (Fact[int], error) {
	if visible := v.visibleGPUs(); visible.From != "" {
		return visible, nil
	}
	n, err := v.optional(0, "SLURM_GPUS_ON_NODE")
	if n.From != "" || err != nil {
		return n, err
	}
	if list := v.first("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"); list.From != "" {
		return Fact[int]{countList(list.Value), list.From}, nil
	}
	return Fact[int]{}, nil
}
