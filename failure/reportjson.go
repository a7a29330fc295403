package failure

import (
	"io"
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

// ReportVersion is the "version" of the JSON report. It changes when a field
// changes its meaning or goes away, not when one is added.
const ReportVersion = 1

// MarshalJSON returns the report for machines. Keys and their order are
// stable; what is not known is null.
//
//	version       ReportVersion
//	title         the entry point
//	run_id
//	host          of the agent that writes the report
//	attempt       restart count of the attempt that failed, from 0
//	max_restarts
//	cause         the root cause in one line, with rank and host; without one, who preempted the job
//	autopsy       what this host's workers did when they hung; autopsy_file has the evidence
//	silent        list of the hosts that did not say how their workers ended
//	left_out      number of other hosts' failures that are not in the list
//	failures      root cause first, then in the order of Report.Failures; of each:
//	  rank, local_rank, host, pid
//	  kind            "failed", "lost peer", "stopped"
//	  root            true for the root cause
//	  cause, hint     one line each
//	  exit_code       0..255, -N for signal N
//	  signal          "SIGKILL"
//	  core_dumped
//	  failed_at       RFC 3339, UTC, nine decimals: when it went wrong
//	  started_at, ended_at
//	  stopped_by      the signal that muster had sent before the end
//	  start_error, oom, stuck_in, timer    see Observation
//	  error_file      path of the error file, if there was one
//	  error_file_note what is wrong with it
//	  message         the error in the worker's words, or torchrun's for there being none
//	  traceback       and traceback_from, "error file", "stderr" or "function"
//	  stderr_tail     list of the last lines where there is no traceback
//	  log             path of the stderr file
//	preempted     of a job that was told to stop as a whole; absent otherwise:
//	  host, signal, time      who received what, and when
//	  exit_status             of the agents
//	  grace_seconds           what the workers had
//	  cut_short               "second signal", "end of the grace"; null if all workers ended in time
//	  workers                 of this host: rank, local_rank, pid, exit_code, signal, ended_at, stopped_by,
//	                          and cut_short: whether it was killed
//	decision      by which rule of a restart policy the job was stopped, or went on; absent without a policy
func (r *Report) MarshalJSON() ([]byte, error) {
	cause := ""
	if root := r.Root(); root != nil {
		cause = root.Error()
	} else if r.Preempted != nil {
		cause = "preempted: " + r.Preempted.String()
	}
	failures := pyjson.List()
	for i, f := range r.Failures {
		failures.Items = append(failures.Items, f.json(i == 0))
	}
	silent := pyjson.Value{}
	if len(r.Silent) > 0 {
		silent = pyjson.List()
		for _, host := range r.Silent {
			silent.Items = append(silent.Items, str(host))
		}
	}
	report := pyjson.Dict(
		m("version", pyjson.Int(ReportVersion)),
		m("title", str(r.Title)),
		m("run_id", str(r.RunID)),
		m("host", str(r.Host)),
		m("attempt", num(r.Attempt)),
		m("max_restarts", num(r.Restarts)),
		m("cause", str(cause)),
		m("silent", silent),
		m("autopsy", str(r.Autopsy)),
		m("autopsy_file", str(r.AutopsyFile)),
		m("left_out", num(r.LeftOut)),
		m("failures", failures),
	)
	if r.Preempted != nil {
		report.Set("preempted", r.Preempted.json())
	}
	if r.Decision != "" {
		report.Set("decision", str(r.Decision))
	}
	return report.Append(nil), nil
}

// WriteJSON writes MarshalJSON's document and a newline, with one Write.
func (r *Report) WriteJSON(w io.Writer) error {
	b, err := r.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

func (f *ProcessFailure) json(root bool) pyjson.Value {
	startError, file, note := "", "", ""
	if f.StartErr != nil {
		startError = clip(f.StartErr.Error(), maxTailLine)
	}
	if f.File != nil {
		file, note = f.File.Path, f.File.Note
	}
	tail := pyjson.Value{}
	if len(f.LastLines) > 0 {
		tail = pyjson.List()
		for _, l := range f.LastLines {
			tail.Items = append(tail.Items, pyjson.Str(l))
		}
	}
	return pyjson.Dict(
		m("rank", num(f.Rank)),
		m("local_rank", num(f.LocalRank)),
		m("host", str(f.Host)),
		m("pid", num(f.PID)),
		m("kind", str(string(f.Kind))),
		m("root", pyjson.True(root)),
		m("cause", str(f.Cause)),
		m("hint", str(f.Hint)),
		m("exit_code", num(f.ExitCode)),
		m("signal", str(SignalName(f.Signal()))),
		m("core_dumped", pyjson.True(f.CoreDumped)),
		m("failed_at", stamp(f.FailedAt)),
		m("started_at", stamp(f.Started)),
		m("ended_at", stamp(f.Time)),
		m("stopped_by", str(SignalName(f.StoppedBy))),
		m("start_error", str(startError)),
		m("oom", str(f.OOM)),
		m("stuck_in", str(f.Abandoned)),
		m("timer", str(f.TimerExpired)),
		m("error_file", str(file)),
		m("error_file_note", str(note)),
		m("message", str(boundTraceback(f.Message, maxTraceback))),
		m("traceback", str(boundTraceback(f.Traceback, maxTraceback))),
		m("traceback_from", str(f.TracebackFrom)),
		m("stderr_tail", tail),
		m("log", str(f.StderrPath)),
	)
}

func m(key string, v pyjson.Value) pyjson.Member { return pyjson.Member{Key: key, Value: v} }

func num(n int) pyjson.Value { return pyjson.Int(int64(n)) }

// str is null for "". Strict readers refuse the lone surrogates that Python's
// strings may hold, so those go.
func str(s string) pyjson.Value {
	if s == "" {
		return pyjson.Value{}
	}
	return pyjson.Str(pyjson.Clean(s))
}

func stamp(t time.Time) pyjson.Value {
	if t.IsZero() {
		return pyjson.Value{}
	}
	return pyjson.Str(t.UTC().Format("2006-01-02T15:04:05.000000000Z"))
}
