// Package scheduler reads from the environment what the scheduler that started this process
// has said of the job: how many hosts take part, which of them this is, where they
// can meet, what the job is called, and how many GPUs this host was given.
//
// It knows Slurm (srun, and the batch script of a job of one host), Open MPI's
// mpirun, Hydra's mpiexec (MPICH, Intel MPI, MVAPICH), LSF, PBS, and indexed
// Jobs of Kubernetes. Detect asks them innermost first: an mpirun in a Slurm job
// started this process, Slurm only started the mpirun.
//
// Every value comes with the variable that it was read from. Variables that are
// missing or contradict each other are errors: a guess would leave the other hosts
// waiting. One process per host is required, since one agent per host starts that
// host's workers.
//
// The package decides and does nothing: it starts nothing, resolves no name, and
// reads files only through the function it is given.
package scheduler
