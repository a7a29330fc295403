// Package e2e holds the end-to-end tests: they build the program and run whole
// jobs with it, next to the real torchrun where one is at hand.
//
// Workers are mostly the test binary itself, told what to do by the words that
// follow "worker" on its command line (worker_test.go). They report on a named
// pipe, the board, and wait at a lock, the gate, so that no test has to guess how
// long something takes.
//
// What torchrun 2.15 does wrong is shown by the tests whose names begin with
// Judge. They run only with MUSTER_JUDGE=1 (`make judge`): torchrun takes
// seconds for each job and its defects take longer.
package e2e
