// Package slurmlab runs a real Slurm for tests: a controller and a number of nodes,
// each on a host of its own of package netlab, with srun, sbatch and scancel as
// users have them.
//
// The programs are Debian's slurmctld, slurmd, slurm-client and munge. Where they
// are missing New installs them, once, if it may (root and apt-get, and no service
// manager that would start them); otherwise the test skips and says so in one line.
// NeedMPI does the same for openmpi-bin and mpich, which only some tests start agents
// with, and NeedLogrotate for logrotate.
// Nothing of the machine's own configuration is read or written: every file is in a
// directory of the test, every port in a network namespace.
//
// Every daemon is a child of the test process, told to stop and waited for at its
// end; what Slurm has started in the hosts ends with the hosts.
//
// The end of a job is an event: Slurm's job completion plug-in writes it to a named
// pipe, so no test polls for it.
package slurmlab
