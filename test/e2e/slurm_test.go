//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/slurmlab"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A slurmJob is a batch job of muster's in a real Slurm. It is a job whose launcher
// is the batch script; status and destroy are Slurm's business.
type slurmJob struct {
	*job
	lab *slurmlab.Lab
	id  int
	log string
	env []string
}

// newSlurmJob prepares a job: its workers share a board, a gate and a tag.
func newSlurmJob(t testing.TB, lab *slurmlab.Lab) *slurmJob {
	t.Helper()
	j := &slurmJob{lab: lab, log: filepath.Join(t.TempDir(), "log"), job: &job{
		t: t, l: launcher{name: "sbatch"}, ended: make(chan struct{}),
		tag: testproc.NewTag(), board: newBoard(t), gate: testproc.NewGate(t),
	}}
	log, err := os.Create(j.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	j.outErr = [2]*os.File{log, log}
	j.env = append(testproc.Env(j.board.Board, j.gate, j.tag), "OMP_NUM_THREADS=1", "PATH="+bin+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() { // docs/slurm.md shows one of them
			t.Logf("job %d:\n%s", j.id, j.out())
		}
	})
	return j
}

// submit submits one of the scripts of examples/slurm.
func (j *slurmJob) submit(script string, options []string, args ...string) {
	j.t.Helper()
	j.id = j.lab.Submit(j.env, slices.Concat([]string{"--output=" + j.log, "--open-mode=append"}, options, []string{filepath.Join("..", "..", "examples", "slurm", script)}, args)...)
}

// wantRequeued waits until the job has been put back into the queue.
func (j *slurmJob) wantRequeued() {
	j.t.Helper()
	j.wantEnd(slurmlab.End{State: "PENDING"})
}

// wantEnd waits for the end of the job.
func (j *slurmJob) wantEnd(want slurmlab.End) {
	j.t.Helper()
	want.Job = j.id
	if got := j.lab.AwaitEnd(j.id); got != want {
		j.t.Fatalf("the job ended as %+v, want %+v\n%s", got, want, j.out())
	}
}

// says waits until nothing of the job runs any more and checks what its log has.
func (j *slurmJob) says(texts ...string) *slurmJob {
	j.t.Helper()
	j.noneLeft(patience)
	for _, text := range texts {
		if !strings.Contains(j.out(), text) {
			j.t.Errorf("the log of job %d does not say %q\n%s", j.id, text, j.out())
		}
	}
	return j
}

// ranks is a line for each of the job's four workers.
func ranks(format string) []string {
	var all []string
	for rank := range 4 {
		all = append(all, fmt.Sprintf(format, rank))
	}
	return all
}

// again is what workers of a job that has been requeued do: they say so, and end.
const again = `[ -z "$SLURM_RESTART_COUNT" ] || { echo "rank $RANK, restart $SLURM_RESTART_COUNT"; exit 0; }; `

// saving are workers that save their work when a signal comes, and end.
func saving(signal string) []string {
	return slices.Concat([]string{"--no-python", "sh", "-c", again + `exec "$@"`, "sh"}, worker("catch:"+signal, "report:saved $RANK", "exit:0"))
}

// Batch jobs of examples/slurm in a real Slurm of two nodes, each with room for all
// of them. The one that waits for its time limit is begun first.
func TestSlurm(t *testing.T) {
	t.Parallel()
	lab := slurmlab.New(t, slurmlab.Config{CPUs: 16, GPUs: 16})

	early := newSlurmJob(t, lab)
	early.submit("requeue.sbatch", []string{"--time=4", "--signal=USR1@120"}, saving("USR1")...) // a busy Slurm is late with both
	early.await(ranks("ready %d")...)
	early.endsIn("now+130") // the signal is due, the end is not
	late := newSlurmJob(t, lab)
	late.submit("train.sbatch", nil, saving("TERM")...)
	late.await(ranks("ready %d")...)
	late.endsIn("now+3")

	t.Run("train", func(t *testing.T) { slurmTrain(t, lab) })
	t.Run("requeue", func(t *testing.T) { slurmRequeue(t, lab) })
	t.Run("no requeue", func(t *testing.T) {
		j := newSlurmJob(t, lab)
		j.submit("requeue.sbatch", nil, "--no-python", "sh", "-c", `[ $RANK != 2 ] || exit 3; exec sleep 1000`)
		j.wantEnd(slurmlab.End{State: "FAILED", Code: 3})
		j.says(": exit code 3")
	})
	t.Run("cancel", func(t *testing.T) { slurmCancel(t, lab) })
	t.Run("two tasks", func(t *testing.T) { slurmTwoTasks(t, lab) })
	t.Run("groups", func(t *testing.T) { slurmGroups(t, lab) })
	t.Run("mpirun", func(t *testing.T) {
		slurmMPI(t, lab, "Open MPI", "mpirun.openmpi", "--allow-run-as-root", "--map-by", "ppr:1:node", "--bind-to", "none")
	})
	t.Run("mpiexec", func(t *testing.T) { slurmMPI(t, lab, "mpiexec", "mpiexec.hydra", "-ppn", "1") })
	t.Run("early signal", func(t *testing.T) {
		early.t = t
		early.await(ranks("SIGUSR1 at %d")...).await(ranks("saved %d")...)
		early.wantRequeued()
		early.wantEnd(slurmlab.End{State: "COMPLETED"})
		early.says("0: muster: the job is preempted: host host", "1: muster: the job is preempted: host host", "received SIGUSR1", "status 75: back to the queue, restart 1 of 3")
		early.says(ranks("rank %d, restart 1")...)
	})
	t.Run("time limit", func(t *testing.T) {
		late.t = t
		late.await(ranks("SIGTERM at %d")...).await(ranks("saved %d")...)
		late.wantEnd(slurmlab.End{State: "TIMEOUT"})
		late.says("0: muster: the job is preempted: host host", "1: muster: the job is preempted: host host", "received SIGTERM")
	})
}

// endsIn has Slurm end the job at another time than its limit.
func (j *slurmJob) endsIn(when string) {
	j.t.Helper()
	if out, err := j.lab.Run(nil, "scontrol", "update", "JobId="+itoa(j.id), "EndTime="+when); err != nil {
		j.t.Fatalf("scontrol update: %v\n%s", err, out)
	}
}

// A training on two nodes, without a flag that says so, loses a worker, continues from
// its checkpoint, and comes to the same losses as on one host.
func slurmTrain(t *testing.T, lab *slurmlab.Lab) {
	python := withPython(t)
	j := newSlurmJob(t, lab)
	j.env = append(j.env, "PATH="+bin+":"+strings.TrimPrefix(python.env[0], "PATH="))
	j.submit("train.sbatch", []string{"--gpus-per-node=1"}, example("train_checkpoint.py"), "--dir", t.TempDir(), "--die-at", "3")
	j.wantEnd(slurmlab.End{State: "COMPLETED"})
	for _, label := range []string{"0", "1"} {
		line := fmt.Sprintf("%s: muster run: Slurm says nnodes=2 (SLURM_STEP_NUM_NODES), rdzv-id=%d.0 (SLURM_JOB_ID, SLURM_STEP_ID), is_host=%t (SLURM_NODEID), "+
			"rdzv-endpoint=host0:", label, j.id, label == "0")
		j.says(line, "nproc-per-node=1 (SLURM_GPUS_ON_NODE)\n")
	}
	if diff := cmp.Diff([]string{"0: attempt 0: starting at epoch 0", "0: attempt 1: starting at epoch 3"}, grep(j.out(), `: attempt`)); diff != "" {
		t.Errorf("attempts (-want +got)\n%s", diff)
	}
	var got []string
	for _, line := range grep(j.out(), `: epoch`) {
		got = append(got, strings.TrimPrefix(line, "0: "))
	}
	if diff := cmp.Diff(undisturbed(t, 2), got); diff != "" {
		t.Errorf("losses (-one host +Slurm)\n%s", diff)
	}
}

// A job that ends with 75 is queued again, and then comes to its end.
func slurmRequeue(t *testing.T, lab *slurmlab.Lab) {
	j := newSlurmJob(t, lab)
	j.submit("requeue.sbatch", nil, "--no-python", "sh", "-c", again+`[ $RANK != 3 ] || exit 75; exec sleep 1000`)
	j.wantRequeued()
	j.wantEnd(slurmlab.End{State: "COMPLETED"})
	j.says(": exit code 75", "status 75: back to the queue, restart 1 of 3")
	j.says(ranks("rank %d, restart 1")...)
}

// scancel: the workers get SIGTERM and save their work, muster waits for them and
// ends; Slurm has nothing to kill, and nothing comes back.
func slurmCancel(t *testing.T, lab *slurmlab.Lab) {
	j := newSlurmJob(t, lab)
	j.submit("requeue.sbatch", nil, saving("TERM")...)
	j.await(ranks("ready %d")...)
	if out, err := lab.Run(nil, "scancel", itoa(j.id)); err != nil {
		t.Fatalf("scancel: %v\n%s", err, out)
	}
	j.await(ranks("SIGTERM at %d")...).await(ranks("saved %d")...)
	j.wantEnd(slurmlab.End{State: "CANCELLED"})
	j.says("0: muster: the job is preempted: host host", "1: muster: the job is preempted: host host", "received SIGTERM")
	if out, err := lab.Run(nil, "scontrol", "show", "job", itoa(j.id)); err != nil || strings.Contains(out, "JobState=PENDING") || strings.Contains(j.out(), "back to the queue") {
		t.Errorf("after scancel the job is (%v)\n%s", err, out)
	}
}

// Two agents on one node are refused, with the srun to use.
func slurmTwoTasks(t *testing.T, lab *slurmlab.Lab) {
	out, err := lab.Run([]string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "srun", "-N2", "--ntasks-per-node=2", "--cpus-per-task=2", "muster", "run", "--no-python", "true")
	if err == nil {
		t.Errorf("srun succeeded:\n%s", out)
	}
	for _, want := range []string{
		"error: srun started 2 tasks on a host (SLURM_STEP_TASKS_PER_NODE=2(x2)), where muster needs one that starts all workers of the host\n",
		"hint: use: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 muster run ... (or --standalone for this host alone)\n",
	} {
		if n := strings.Count(out, want); n != 4 {
			t.Errorf("%d of 4 tasks said %q:\n%s", n, want, out)
		}
	}
}

// Agents that an MPI launcher has started in a job of Slurm meet at the job's first
// node.
func slurmMPI(t *testing.T, lab *slurmlab.Lab, name string, launcher ...string) {
	slurmlab.NeedMPI(t, launcher[0])
	j := newSlurmJob(t, lab)
	path := script(t, "mpi.sbatch", "#!/bin/sh\nexec \"$@\"\n")
	// mpirun forwards the SIGCONT of a pause, and Open MPI's gives up when a host has not joined yet.
	env := append(slices.Clone(j.env), testproc.Unpaused)
	j.id = lab.Submit(env, slices.Concat([]string{"--output=" + j.log, "-N2", path}, launcher,
		[]string{"muster", "run", "--nproc-per-node=2", "--no-python", "sh", "-c", `echo "rank $RANK of $WORLD_SIZE"`})...)
	j.wantEnd(slurmlab.End{State: "COMPLETED"})
	j.says("muster run: "+name+" says nnodes=2 (", "is_host=false (", "rdzv-endpoint=host0:", " (SLURM_JOB_NODELIST, port from the run ID)")
	j.says(ranks("rank %d of 4")...)
}

// Workers stay in the control groups that Slurm's daemon has put the task in.
func slurmGroups(t *testing.T, lab *slurmlab.Lab) {
	show := `while IFS=: read -r n what path; do echo "$0 $n:$what $path"; done </proc/self/cgroup`
	out, err := lab.Run([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "SHOW=" + show}, "srun", "-N1", "sh", "-c",
		`sh -c "$SHOW" step; exec muster run --no-python sh -c "$SHOW" worker`)
	if err != nil {
		t.Fatalf("srun: %v\n%s", err, out)
	}
	paths := map[string]map[string]string{"step": {}, "worker": {}}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && paths[f[0]] != nil {
			paths[f[0]][f[1]] = f[2]
		}
	}
	if len(paths["step"]) == 0 {
		t.Errorf("no groups:\n%s", out)
	}
	for group, step := range paths["step"] {
		if strings.Contains(group, "freezer") && strings.Contains(step, "slurm") {
			t.Logf("Slurm's group is %s", step)
		}
		if got := paths["worker"][group]; got != step && !strings.HasPrefix(got, strings.TrimSuffix(step, "/")+"/") {
			t.Errorf("the worker's group %s is %s, not below %s", group, got, step)
		}
	}
}
