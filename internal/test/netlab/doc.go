// Package netlab makes several hosts on one machine, out of Linux namespaces, for
// tests of jobs that span hosts.
//
// A Lab is a switch and hosts plugged into it. A Host has a network stack, a host
// name, name resolution and processes of its own; it shares files, the clock and users
// with the machine. Links are pulled and put back, packets
// between two hosts or at random are lost, and hosts die, with or without their
// kernel saying goodbye.
//
// The switch is a bridge in a network namespace that has neither name nor process:
// an open file of the test process holds it. A host is a network namespace held in
// the same way, and, while it is up, one process that is the init of a PID
// namespace with a mount and a UTS namespace. When that init ends, the
// kernel ends everything in the host at once, which is how a host dies. The init
// is a cat on a pipe from the test process: when the test process ends, however
// that happens, the pipe ends, then the init, then all the rest. Nothing has a name
// that another run could have too, and the machine's own namespaces are not touched.
//
// Processes are started inside by a thread of the test process that enters the
// namespaces first and is thrown away afterwards. So they are children of the test
// process, without a helper in between that would catch signals or hide exit codes.
//
// It needs Linux 5.8, root, and the programs ip and tc of iproute2 (tc loads a
// filter of a few instructions; nftables is not needed). Without them tests skip.
//
// What it does not do: delay packets, limit bandwidth, skew clocks, or hide files.
// /sys shows the machine's network interfaces, not the host's. Process IDs repeat
// from host to host, as they do in containers. Where cgroups of version 2 can be
// made each host has one below that of the test process; they are the one thing that
// has a name, and that a killed test process leaves, empty, for the next to remove.
package netlab
