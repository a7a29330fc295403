// Package health is a job's control server: it shows over HTTP how a job is doing, to probes, to
// Prometheus, to other programs and to people, and where Config.Control is set it takes commands.
//
//	/healthz   200 while the agent makes progress, else 503
//	/readyz    200 while the workers run, else 503
//	/metrics   Prometheus' text format
//	/v1/state  a jobstate.State as JSON
//	/v1/logs   the end of one worker's log: ?rank=N&stream=stdout|stderr&lines=N,
//	           or a stream of what all workers write: ?follow=1
//	/          a page for people that updates itself
//
// What is shown comes from a Source; a jobstate.Observer makes its States of what an agent tells.
// A Server asks it at most once in Config.Refresh, however many requests there are, and
// never because of a clock: a server that nobody asks does nothing. Nobody waits long
// for a Source that does not answer; there is always the last State, and /healthz needs none.
//
// Nothing can be changed through a Server, unless Config.Control is set. It listens at the loopback interface
// unless its address says otherwise, and what is written on it is neither
// encrypted nor does it ask who reads: a State names hosts, files and pids, and
// the page shows the ends of logs.
//
// Source: the health check server in elastic/agent/server/health_check_server.py,
// of which the public build has only the interface.
package health
