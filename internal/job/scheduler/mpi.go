package scheduler

import (
	"fmt"
)

// An mpi is a launcher of ranks that tells them how many they are, and which.
type mpi struct {
	name                             string
	size, rank, localSize, localRank string // variables
	id                               []string
	use                              string // how to start one process per host
	lead                             string // how to say where rank 0 is
}

// openMPI reads what mpirun of Open MPI tells its ranks; so do Spectrum MPI and
// whatever else is made of Open MPI.
// Source: "Environment variables" in Open MPI's documentation of mpirun.
func openMPI(v vars) (*Job, error) {
	return mpi{
		name: "Open MPI",
		size: "OMPI_COMM_WORLD_SIZE", rank: "OMPI_COMM_WORLD_RANK",
		localSize: "OMPI_COMM_WORLD_LOCAL_SIZE", localRank: "OMPI_COMM_WORLD_LOCAL_RANK",
		id:   []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
		use:  "mpirun --map-by ppr:1:node --bind-to none muster run ...",
		lead: "mpirun -x MASTER_ADDR=HOST",
	}.read(v)
}

// hydra reads what mpiexec of MPICH, Intel MPI and MVAPICH tells its ranks through
// PMI. srun --mpi=pmi2 sets PMI_RANK as well; there Slurm says more.
func hydra(v vars) (*Job, error) {
	if !v.has("PMI_RANK") || v.has("SLURM_STEP_ID") && !v.has("MPI_LOCALNRANKS") {
		return nil, nil
	}
	return mpi{
		name: "mpiexec",
		size: "PMI_SIZE", rank: "PMI_RANK",
		localSize: "MPI_LOCALNRANKS", localRank: "MPI_LOCALRANKID",
		id:   []string{"PMI_JOBID", "HYDRA_JOBID"},
		use:  "mpiexec -ppn 1 muster run ...",
		lead: "mpiexec -genv MASTER_ADDR HOST",
	}.read(v)
}

func (m mpi) read(v vars) (*Job, error) {
	if !v.has(m.size) && !v.has(m.rank) {
		return nil, nil
	}
	job := &Job{Scheduler: m.name, GPUs: v.visibleGPUs()}
	var errs [5]error
	var localSize, localRank Fact[int]
	job.Nodes, errs[0] = v.number(1, m.size)
	job.NodeRank, errs[1] = v.number(0, m.rank)
	localSize, errs[2] = v.optional(1, m.localSize)
	localRank, errs[3] = v.optional(0, m.localRank)
	errs[4] = within(job.NodeRank, job.Nodes)
	if err := broken(m.name, errs[:]...); err != nil {
		return nil, err
	}
	for _, tasks := range []Fact[int]{localSize, {localRank.Value + 1, localRank.From}} {
		if tasks.Value > 1 {
			from := tasks.From + "=" + v.text(tasks.From)
			return nil, &TasksError{Scheduler: m.name, Tasks: tasks.Value, From: from, Use: m.use}
		}
	}
	job.RunID = v.first(append(m.id, "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")...)
	if job.RunID.From == "" {
		job.RunID = Fact[string]{"mpi", "no variable has a name for the job"}
	}
	if job.Nodes.Value == 1 {
		return job, nil
	}
	return job, m.meet(v, job)
}

// meet finds the host of rank 0: MASTER_ADDR, or the first host of the job that the
// ranks were started in.
func (m mpi) meet(v vars, job *Job) error {
	if lead := v.first("MASTER_ADDR"); lead.From != "" {
		job.meet(lead)
		port, err := v.optional(1, "MASTER_PORT")
		if err == nil && port.Value > 65535 {
			err = fmt.Errorf("MASTER_PORT=%d: want a port, 1 to 65535", port.Value)
		}
		if err != nil {
			return broken(m.name, err)
		}
		if port.From != "" {
			job.Port = port
		}
		return nil
	}
	hosts, from, err := jobHosts(v)
	if err != nil {
		return err
	}
	name, err := v.Hostname()
	switch {
	case from == "":
		return fmt.Errorf("%s has started %d ranks (%s=%d) and does not say where rank 0 is: name its host with %s, or "+
			"give --nnodes, --rdzv-backend=c10d and --rdzv-endpoint",
			m.name, job.Nodes.Value, m.size, job.Nodes.Value, m.lead)
	case len(hosts) != job.Nodes.Value:
		return fmt.Errorf("%s names %d hosts, but %s has started %d ranks (%s): name the host of rank 0 with %s",
			from, len(hosts), m.name, job.Nodes.Value, m.size, m.lead)
	case err == nil && job.NodeRank.Value == 0 && short(name) != short(hosts[0]):
		return fmt.Errorf("rank 0 (%s) runs on %s, but %s begins with %s: name the host of rank 0 with %s",
			m.rank, show(name), from, show(hosts[0]), m.lead)
	}
	job.meet(Fact[string]{hosts[0], from})
	return nil
}

// jobHosts lists the hosts of the job that ranks were started in, if any scheduler
// has told. From is empty if none has.
func jobHosts(v vars) (hosts []string, from string, err error) {
	if list := v.first("SLURM_JOB_NODELIST", "SLURM_NODELIST"); list.From != "" {
		hosts, err = expandHostlist(list.Value)
		return hosts, list.From, broken("Slurm", err)
	}
	if v.has("LSB_JOBID") {
		if hosts, from, err = lsfHosts(v); from != "" || err != nil {
			return hosts, from, broken("LSF", err)
		}
	}
	if v.has("PBS_NODEFILE") {
		hosts, err = readHosts(v, "PBS_NODEFILE")
		return hosts, "PBS_NODEFILE", broken("PBS", err)
	}
	return nil, "", nil
}
