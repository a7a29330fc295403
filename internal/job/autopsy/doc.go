// Package autopsy takes the evidence of workers that hang, before they are killed:
// what each thread does in Python and in the kernel, and what torch's flight recorder knows.
// Workers whose Python stacks are equal are grouped, so that the one that differs is seen.
//
// Take looks at all workers at the same time and is bounded by one deadline. It
// never fails: what could not be had is said in the report, with the reason and
// what to do about it. It does not change what a worker does, but for the pause
// of a few milliseconds in which py-spy reads a worker's stacks. A py-spy that does
// not answer is killed, and the worker made to continue.
//
// A read from /proc may be held up for as long as its process is in the kernel.
// Each runs in a goroutine of its own that is given up at the deadline; it ends
// when the process continues or is killed.
//
// Python stacks come from the first of these that answers:
//
//   - the worker itself, if package witness has put a thread into it;
//   - py-spy, which needs the right to trace the worker.
//
// The package does not stop, kill or restart workers.
package autopsy
