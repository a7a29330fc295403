// Package accounts says where the time of a job's workers went: each millisecond of each worker
// belongs to one Account.
//
// A Log keeps Marks of what an agent does, in a file in the run's log directory. A mark says to which
// account time belongs from a moment on. It may say so of the past, since that work has become a hang
// is known only when the hang is noticed. Then it replaces what was said of the time since:
//
//	at 0    waiting for hosts
//	at 100  start and imports
//	at 700  running            until 800
//	at 800  hang until noticed put at 900
//	at 900  autopsy
//
// So the accounts of a worker add up to the time for which its host took part, whatever the marks are.
// A Report has the sums of all hosts with a run ID, and what each interruption has cost.
package accounts
