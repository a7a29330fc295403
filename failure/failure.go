package failure

import (
	"fmt"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

// An Observation is what the agent knows of one worker that ended badly. Zero
// fields mean that nothing is known or that it did not happen.
type Observation struct {
	LocalRank, Rank, PID int
	// ExitCode is 0..255, or -N for signal N, as Python's subprocess has it.
	ExitCode   int
	CoreDumped bool
	// Started and Time are when the process began and when it ended.
	Started, Time time.Time
	// StoppedBy is the signal that the agent had sent before the end, which
	// makes the end a consequence.
	StoppedBy syscall.Signal
	// StartErr says why the worker could not be started. Entrypoint is the
	// program that was to be started.
	StartErr   error
	Entrypoint string
	// OOM is the evidence of an out-of-memory kill, such as
	// "cgroup memory.events: oom_kill 0→1".
	OOM string
	// Abandoned is the kernel function in which the process was stuck when it
	// did not die of SIGKILL.
	Abandoned string
	// TimerExpired describes the deadline for which the worker was killed.
	TimerExpired string
	// ErrorFile is the path that the worker had in TORCHELASTIC_ERROR_FILE.
	ErrorFile string
	// Err and Stack are the error, or the panic and its stack, of a worker that
	// is a Go function.
	Err   error
	Stack string
	// StderrTail is the last of the worker's stderr, StderrPath the file that
	// has all of it. Mixed says that it is the last of its stdout as well, in the
	// order in which it wrote, as both went to one place.
	StderrTail []byte
	StderrPath string
	Mixed      bool
	// DiskFull is the directory of the logs if no room was left for them.
	DiskFull string
	Host     string
}

// A Kind says what part a failure plays in a job's end.
type Kind string

const (
	// Failed is a failure of the worker's own.
	Failed Kind = "failed"
	// LostPeer is a failure that another worker's death explains: a connection
	// to it broke, or it did not turn up. It is the root cause only where
	// nothing else failed.
	LostPeer Kind = "lost peer"
	// Stopped is a worker that the agent stopped.
	Stopped Kind = "stopped"
)

// Where the text of ProcessFailure.Traceback comes from.
const (
	FromErrorFile = "error file"
	FromStderr    = "stderr"
	FromFunction  = "function" // Observation.Stack
)

// A ProcessFailure is one worker's failure, explained. It does not change once
// made.
// Source: ProcessFailure in errors/__init__.py.
type ProcessFailure struct {
	Observation
	Kind Kind
	// FailedAt is when it went wrong: when the worker wrote its error file, if
	// that is believable, since it may have needed a while to die; otherwise
	// when it ended.
	FailedAt time.Time
	// File is what the worker recorded; nil where there is no error file. A
	// file that is there but broken has a Note.
	File *ErrorFile
	// Cause says in one line what happened, without rank and host.
	Cause string
	// Hint says in one line what may help; empty where nothing useful is known.
	Hint string
	// Message is what torchrun shows as traceback where there is none: the
	// error file's message or one made up from the exit code.
	Message string
	// Traceback is the stack of the failure, from TracebackFrom; empty if
	// there is none.
	Traceback, TracebackFrom string
	// LastLines are the last lines of StderrTail where there is no traceback.
	LastLines []string
}

// New explains what was observed. It reads the error file and never fails:
// what is wrong with the file becomes part of the explanation.
func New(o Observation) *ProcessFailure {
	f := &ProcessFailure{Observation: o, FailedAt: o.Time, Kind: Failed}
	if f.Time.IsZero() {
		f.FailedAt = time.Now()
	}
	if file, err := ReadErrorFile(o.ErrorFile); file != nil {
		f.File = file
		if err == nil || file.Message != "" {
			f.FailedAt = failureTime(file, o.Started, f.FailedAt)
		}
	}
	f.decode()
	return f
}

// Timestamp is FailedAt in whole seconds, torch's field.
func (f *ProcessFailure) Timestamp() int64 { return f.FailedAt.Unix() }

// Signal is the signal of which the worker died, or 0.
func (f *ProcessFailure) Signal() syscall.Signal {
	if f.ExitCode < 0 {
		return syscall.Signal(-f.ExitCode)
	}
	return 0
}

// SignalName is the name of Signal as torch's report has it: "<N/A>" where
// there is none.
func (f *ProcessFailure) SignalName() string {
	if name := SignalName(f.Signal()); name != "" {
		return name
	}
	return notAvailable
}

// Where says which worker it is: "rank 1 (local_rank 1, pid 123) on host h".
func (f *ProcessFailure) Where() string {
	s := fmt.Sprintf("rank %d (local_rank %d", f.Rank, f.LocalRank)
	if f.PID > 0 {
		s += fmt.Sprintf(", pid %d", f.PID)
	}
	s += ")"
	if f.Host != "" {
		s += " on host " + oneLine(f.Host, maxName)
	}
	return s
}

// Error is Where and Cause, so that a failure can be passed on as an error.
func (f *ProcessFailure) Error() string { return f.Where() + ": " + f.Cause }

// ErrorFileData is the error file's content as JSON in Python's spelling,
// and {"message": "<NONE>"} where there is none. An oversized one is cut down
// to its message and the end of its traceback.
// Source: ProcessFailure.error_file_data.
func (f *ProcessFailure) ErrorFileData() []byte {
	if f.File == nil || !f.File.sound() {
		data := pyjson.Dict(pyjson.Member{Key: "message", Value: pyjson.Str("<NONE>")})
		if f.ExitCode >= 0 && f.Kind != Stopped {
			data.Set("errorTraits", pyjson.Dict(
				pyjson.Member{Key: "category", Value: pyjson.Str("system_terminated_error")},
				pyjson.Member{Key: "retryability", Value: pyjson.Str("False")}))
		}
		return data.Append(nil)
	}
	if b := f.File.data.Append(nil); len(b) <= maxTraceback {
		return b
	}
	return errorData(oneLine(f.File.Message, maxCause), boundTraceback(f.File.Callstack, maxTraceback), f.FailedAt).Append(nil)
}

// failureTime is when the error that a file tells of happened. The file's own
// time has only whole seconds and its mtime may come from another clock (NFS), so
// each is checked against the other and against the life of the process.
func failureTime(file *ErrorFile, started, ended time.Time) time.Time {
	const slack = 20 * time.Millisecond // file times come from a clock that ticks; allow it a tick or two
	lived := func(t time.Time) bool {
		return !t.IsZero() && !t.After(ended.Add(slack)) && (started.IsZero() || !t.Before(started.Add(-slack)))
	}
	earlier := func(t time.Time) time.Time {
		if t.After(ended) {
			return ended
		}
		return t
	}
	said, written := file.Timestamp, file.ModTime
	switch {
	case said.IsZero() && lived(written):
		return earlier(written)
	case said.IsZero():
		return ended
	case lived(written) && !said.After(written) && written.Sub(said) < 2*time.Second:
		return earlier(written)
	case lived(said) && ended.Sub(said) < 10*time.Minute:
		// Somewhen in that second: its end, lest a rounded time beat an exact one.
		return earlier(said.Add(time.Second - 1))
	}
	return ended
}
