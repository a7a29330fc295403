// Package e2e holds the end-to-end tests: they build the program and run whole
// jobs with it, next to the real torchrun where one is at hand.
//
// Workers are mostly the test binary itself, told what to do by the steps on its
// command line (package testproc, and worker_test.go for those of these tests). They
// report on a named pipe, the board, and wait at a lock, the gate, so that no test has
// to guess how long something takes.
//
// What torchrun 2.15 does wrong is shown by the tests whose names begin with
// Judge. They run only with MUSTER_JUDGE=1 (`make judge`): torchrun takes
// seconds for each job and its defects take longer.
//
// Which file shows that
//
//	adopted       programs from PyPI start muster where they start the launcher of PyTorch
//	asked         muster restart restarts the workers of all hosts
//	badinput      a command line that cannot work is refused before anything starts
//	collectives   a rank that does not come to a collective, or to another one, is named
//	console       output comes out line by line; a console that is stuck or gone stops no job
//	defects       muster has none of torchrun's defects (docs/differences.md)
//	env           workers find torchrun's environment, descriptors and command line
//	failure       the report has torchrun's lines and more, also of what no decorator recorded
//	follow        muster logs --follow ends with the job that it follows
//	forked        what stands for a worker's interpreter ends as its script does
//	golden        events and metrics are torchrun's
//	gpu           what a host with a GPU does with a job; skipped elsewhere
//	hang          a hang is explained, ended, and the next attempt succeeds
//	health        the probes tell the truth in every phase
//	hosts         what happens to a job on many hosts (docs/internals/failures.md), by backend
//	hosts_bad     endpoints without a rendezvous and agents that do not fit are named
//	hosts_disk    full disks of a quorum are named
//	hosts_form    the holder may call itself localhost, 0.0.0.0 or nothing
//	hosts_family  hosts meet by the kind of address that gets through
//	hosts_job     one view of a job on many hosts: state, logs, commands, evidence
//	hosts_link    of a network in two parts one trains
//	hosts_train   a training loses the host of rank 0 and continues, also with a local store
//	inturn        stdout and stderr of one worker stay in turn
//	leftover      nothing of a job is left, however it ends
//	listen        the workers' store lets nobody else in
//	live          a group continues when workers and hosts are lost, and come
//	live_end      no worker joins a training that has ended, or one without its members
//	live_holder   the holder of the rendezvous is lost in the midst of a live change
//	live_random   whatever dies, also at once and during a change, by backend
//	logs          the log directory is torchrun's; no line is lost or torn
//	metrics       a live job's metrics hold while it restarts
//	logrotate     logrotate empties log files, and no reader loses a line
//	mixed         agents of muster and of torchrun share a job
//	mixed_bad     state that others broke harms no job
//	mixed_change  restarts, joins and leaves in such a job
//	onehost       what happens on a host that lacks something (docs/internals/failures.md)
//	pid1          the agent as PID 1 of a container
//	pods          Kubernetes pods find each other
//	policy        rules drain hosts and limit restarts
//	preempt       preemption ends all hosts with its own status
//	secret        tokens and certificates, with every backend
//	spares        muster stop ends spares, too
//	signal        signals, grace, and many jobs at once
//	slow          a rank that makes the others wait is named
//	slurm         the examples in a real Slurm
//	train         the same losses as under torchrun, checkpoints, restarts
//	warm          a host has its template of warm starts before it has a rank
package e2e
