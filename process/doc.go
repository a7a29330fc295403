// Package process starts, watches and stops the workers of one host.
//
// A Supervisor is made once per program. It owns what the kernel ties to a
// process or a thread: the thread that forks (parent-death signals fire when
// that thread ends), being a child subreaper (orphaned grandchildren become our
// children, so that they can be found), the cgroup that workers start in where
// one can be made, and the guard, a small process that cleans up if this one is
// killed.
//
// Start starts a Group: one worker per local rank, each the leader of a session
// of its own, a program or a registered function of this program. One goroutine
// owns the group. The first worker that fails makes it stop the others; a worker
// that ends, however it does, takes the processes that it left behind with it.
// Wait returns when all of that is over.
//
// No pid is signalled that could have become another process's: a worker's
// number and that of its process group stay reserved until it is reaped, which
// happens last, and every other process is signalled through a pidfd that was
// checked against its start time.
//
// The package does not restart anything and does not interpret failures; those
// are the business of packages agent and failure. On systems other than Linux it
// starts, waits for and stops workers and their process groups, and no more than
// that: there is no guard, and descendants that left the process group are not
// found.
//
// Source: torch/distributed/elastic/multiprocessing/api.py.
package process
