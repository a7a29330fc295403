// Package postmortem reads what a job has left in its log directory and says how
// it went: which attempts there were, how long each ran, why it ended, and where
// the files are. It reads the directories of muster and of torchrun.
//
//	<log dir>/<run id>_<8 random>/attempt_<n>[.<m>]/<local rank>/stdout.log, stderr.log, error.json
//	                             /attempt_<n>[.<m>]/report.json, autopsy.json
//	                             /job.jsonl, time.jsonl
//
// When an attempt ran, and why it ended, is taken from the first that knows it of
// report.json, time.jsonl, job.jsonl and the times of the files; how the job ended is
// what its agent says in job.jsonl, if that is there.
//
// All that is read is hostile: only regular files are opened, links are not
// followed, no open waits for another process, and no run makes Read take more than
// a bounded amount of memory. What is broken becomes a line in Problems.
//
// Nothing is written or removed.
//
// Source: the layout of DefaultLogsSpecs in
// torch/distributed/elastic/multiprocessing/api.py.
package postmortem
