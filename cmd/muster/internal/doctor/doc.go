// Package doctor looks, before a job, for what would break it: `muster doctor`.
//
// A check looks at one thing (names, the endpoint, limits, disks, Python, GPUs) and
// says lines: ok, a warning, or a failure, with what to do. Checks run at the same
// time, each with a time limit of its own, and their lines come in a fixed order. A
// check sees the machine only through a System, so that tests show it another one.
//
// Where a job has several hosts and doctor runs on each, the hosts meet as the job
// would: at the endpoint, through muster's rendezvous. Then each connects to each
// other at every address that workers would use, sends more than one packet's worth,
// and asks for the time. What all have found is put together, by the same pure function
// on every host (judge), so that each prints the same and knows which direction of a
// connection fails.
//
// Nothing is changed on the host but a temporary file in each directory that is
// checked, a cgroup that is made and removed at once, and this process' own soft
// limits.
package doctor
