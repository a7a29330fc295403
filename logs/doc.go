// Package logs decides where the output of workers goes and brings it there:
// into files, to the console, or both.
//
// A [Run] is one agent's log directory and its console. Each start of the
// worker group is an [Attempt] in it: Attempt makes the directories and opens
// what each worker gets as its stdout and stderr ([Sink]), Started begins to
// follow, Finish brings what is left and ends.
//
//	<dir>/<run id>_<8 random>/attempt_<n>/<local rank>/stdout.log
//	                                                   stderr.log
//	                                                   error.json
//	                         /attempt_<n>/filtered_stdout.log
//	                                      filtered_stderr.log
//
// A redirected worker writes its file itself, so neither a slow console nor a
// dead agent blocks it or loses what it wrote. Tee follows such files and copies whole
// lines, each with a prefix that names its worker.
// What is not redirected goes to the console as it is, by a detour through the agent, which
// keeps its last 64 KiB for the report of a failure; a worker whose agent has a terminal gets
// a terminal (a pty) for stderr. Where both go to the same place, as on a terminal and with
// 2>&1, stdout and stderr take one way, so that what a worker writes in turn comes out in
// turn; what is kept is of both then. Only a stdout that alone is a terminal is the agent's
// own. On that detour a console that nobody reads blocks the worker, as it would without it.
//
// Bytes are never decoded or changed. What is added is the prefix, a newline
// after a last line that has none, and a newline where a worker's unfinished
// line (a progress bar) would otherwise share a line with another's output.
//
// A file may be emptied while it is read, as logrotate does with copytruncate: readers continue at its
// beginning once they have read the rest of the copy. With Config.Collapse lines that several workers
// write at a time are copied once.
//
// Inside, bytes take one of three ways to a console, which keeps lines whole:
//
//	a file      source -> follower -> tail [-> collapser] -> console    source.go, tail.go, follower.go, collapse.go
//	a pipe, pty relay -> console                                        relay.go
//	the agent   consoleWriter -> console                                console.go
//
// A reader on another host, or a later one, reads files in whole lines ([Stream]). A [Printer] puts them
// together; it uses a tail's collapser and a console.
//
// The tail and the collapser cut output into units (lines.go). The package starts no processes.
package logs
