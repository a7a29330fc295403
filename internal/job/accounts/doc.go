// Package accounts says where the time of a job's workers went: each millisecond of each worker
// belongs to one Account.
//
// A Log keeps Marks of what an agent does, in a file in the run's log directory. A mark says that from a moment on the time of all workers of the host, or of one of
// them, belongs to an account. A mark may say so of the past, since the end of work is only
// known once a hang has been noticed:
//
//	at 0    waiting for hosts
//	at 100  start and imports
//	at 700  running
//	at 900  autopsy            what was running until now, is; but
//	at 800  hang until noticed since 800 it was a hang, and since 900
//	at 900  autopsy            an autopsy
//
// So the sum of all accounts of a worker is the time for which its host took part, whatever the marks are.
// A Report has the sums of all hosts of a run ID, and what each failure has cost.
package accounts
