// Package policy decides what follows from a failure of a job's workers, by rules
// that somebody has written down beforehand: start again, stop the job, or continue
// without the host.
//
// A Policy is what a file says (Parse); it does not change. An Engine applies it to
// one job: Decide says what follows from a failure, and Record that this is what
// has followed, here or because another host has decided so. Neither reads a clock
// or a file.
//
// The package stops and starts nothing; that is package agent. docs/restart-policy.md
// has the format of the file.
package policy
