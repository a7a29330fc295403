package failure

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/format/pyjson"
	"github.com/muster-run/muster/internal/format/text"
)

// An Observation is what the agent knows of one worker that ended badly. Zero
// fields mean that nothing is known or that it did not happen. All but the Evidence
// is part of the document that a ProcessFailure is.
type Observation struct {
	Rank      int    `json:"rank"` // -1: not known
	LocalRank int    `json:"local_rank"`
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitzero"` // 0: it was never started
	// ExitCode is 0..255, or -N for signal N, as Python's subprocess has it, or UnknownExit.
	ExitCode   int  `json:"exit_code"`
	CoreDumped bool `json:"core_dumped"`
	// Started and Ended are when the process began and when it ended.
	Started time.Time `json:"started_at,omitzero"`
	Ended   time.Time `json:"ended_at,omitzero"`
	// StoppedBy is the signal that the agent had sent before the end, which
	// makes the end a consequence.
	StoppedBy Signal `json:"stopped_by,omitzero"`
	// OOM is the evidence of an out-of-memory kill, such as
	// "cgroup memory.events: oom_kill 0→1".
	OOM string `json:"oom,omitempty"`
	// GPU is what the kernel and the driver say of this host's GPUs if one of them may be to
	// blame, such as "Xid 79 (it has fallen off the bus) of GPU 3".
	GPU string `json:"gpu,omitempty"`
	// Core says where the core dump is.
	Core string `json:"core,omitempty"`
	// Abandoned is the kernel function in which the process was stuck when it
	// did not die of SIGKILL.
	Abandoned string `json:"stuck_in,omitempty"`
	// TimerExpired describes the deadline for which the worker was killed; see HangPrefix.
	TimerExpired string `json:"timer,omitempty"`
	// ErrorFile is the path that the worker had in TORCHELASTIC_ERROR_FILE; of a
	// ProcessFailure it is empty if there is no such file.
	ErrorFile string `json:"error_file,omitempty"`
	// StderrPath is the file that has all of the worker's stderr.
	StderrPath string `json:"log,omitempty"`

	Evidence `json:"-"`
}

// Evidence is what New explains an Observation by. It stays on the host of the worker: a
// ProcessFailure of another host has none.
type Evidence struct {
	// Err says why the worker could not be started, if it has no PID; else it is the
	// error of a worker that is a Go function, or its panic, which has a Stack.
	Err   error
	Stack string
	// Hosts and Workers are how many of them the job has; 0 is unknown.
	Hosts   int
	Workers int
	// Entrypoint is the program that the worker runs, or was to run.
	Entrypoint string
	// StderrTail is the last of the worker's stderr. Mixed says that it is the last
	// of its stdout as well, in the order in which it wrote, as both went to one place.
	StderrTail []byte
	Mixed      bool
	// StdoutTail is the last of its stdout where that went elsewhere; it counts where stderr says nothing.
	StdoutTail []byte
	// Waits is how far it was in each process group by its flight recorder; nil if that is not known.
	Waits []Collective
	// DiskFull is the directory of the logs if no room was left for them.
	DiskFull string
}

// UnknownExit is the ExitCode of a worker of which only the output is left.
const UnknownExit = 256

// HangPrefix begins Observation.TimerExpired of a worker that hung.
const HangPrefix = "--hang-timeout: "

// UnknownPrefix begins it if nobody knows which of the host's workers made the others wait.
const UnknownPrefix = HangPrefix + "cause unknown: "

// LivePrefix begins it if the worker was killed since those of a live group could not continue.
const LivePrefix = "no live change: "

// A Cause is why a worker or an attempt ended, as the rules of package policy name it and
// muster_worker_exits_total counts it.
type Cause string

const (
	CauseSuccess         Cause = "success"         // it exited 0
	CauseExitCode        Cause = "exit code"       // it exited otherwise
	CauseSignal          Cause = "signal"          // a signal ended it that the agent had not sent
	CauseOOM             Cause = "oom"             // the kernel killed it for lack of memory
	CauseTimer           Cause = "timer"           // it missed the deadline of a timer
	CauseHang            Cause = "hang"            // the host's workers did nothing for --hang-timeout
	CauseStopped         Cause = "stopped"         // the agent stopped it, with its group
	CauseLostPeer        Cause = "lost peer"       // it lost the connection to another worker, and nothing else is known
	CauseHostLost        Cause = "host lost"       // another host died or cannot be reached
	CauseNotStarted      Cause = "not started"     // it could not be started
	CauseUninterruptible Cause = "uninterruptible" // it is stuck in the kernel and cannot be killed
)

// Class is the Cause of a worker that failed or was stopped. A failure that New has not made
// has no Kind; its Class depends on the Observation alone.
func (f *ProcessFailure) Class() Cause {
	switch {
	case f.StartError != "":
		return CauseNotStarted
	case f.OOM != "":
		return CauseOOM
	case f.Abandoned != "":
		return CauseUninterruptible
	case strings.HasPrefix(f.TimerExpired, HangPrefix):
		return CauseHang
	case f.TimerExpired != "" && (f.StoppedBy == 0 || !strings.HasPrefix(f.TimerExpired, LivePrefix)):
		return CauseTimer
	case f.LostPeer():
		return CauseLostPeer
	case f.Stopped(), f.Kind == "" && f.StoppedBy != 0:
		return CauseStopped
	case f.ExitCode < 0 && f.StoppedBy == 0:
		return CauseSignal
	}
	return CauseExitCode
}

// The kinds of a ProcessFailure.
const (
	failed   = "failed"
	lostPeer = "lost peer"
	stopped  = "stopped"
)

// kinds has them in the order in which a Report has its failures.
var kinds = [...]string{failed, lostPeer, stopped}

// Where the text of ProcessFailure.Traceback comes from.
const (
	fromErrorFile = "error file"
	fromStderr    = "stderr"
	fromFunction  = "function" // Observation.Stack
)

// A ProcessFailure is one worker's failure, explained. As JSON it is part of report.json, and
// what agents send each other (Encode) and readers get (ParseReport). It does not change
// once made.
// Source: ProcessFailure in errors/__init__.py.
type ProcessFailure struct {
	// Kind says what part the failure plays in the end of the job: "failed", which is
	// the worker's own doing, "lost peer" or "stopped".
	Kind string `json:"kind"`
	// Root says that this is the root cause of its report. NewReport sets it.
	Root bool `json:"root"`
	// Cause says in one line what happened, without rank and host.
	Cause string `json:"cause"`
	// Hint says in one line what may help; empty where nothing useful is known.
	Hint string `json:"hint,omitempty"`
	Observation
	// Signal is the one of which the worker died, by its ExitCode.
	Signal Signal `json:"signal,omitzero"`
	// FailedAt is when it went wrong: when the worker wrote its error file, if
	// that is believable, since it may have needed a while to die; otherwise
	// when it ended.
	FailedAt time.Time `json:"failed_at,omitzero"`
	// StartError says why the worker could not be started; Errno is the system's number
	// for that, if there is one.
	StartError string `json:"start_error,omitempty"`
	Errno      int    `json:"errno,omitempty"`
	// Note says what is wrong with the error file.
	Note string `json:"error_file_note,omitempty"`
	// Recorded says that Message is from the error file.
	Recorded bool `json:"recorded"`
	// Message is what torchrun shows as traceback where there is none: the
	// error file's message or one made up from the exit code.
	Message string `json:"message,omitempty"`
	// Traceback is the stack of the failure; empty if there is none. TracebackFrom says
	// where it was found: "error file", "stderr" or, of a Go function, "function".
	Traceback     string `json:"traceback,omitempty"`
	TracebackFrom string `json:"traceback_from,omitempty"`
	// LastLines are the last lines of StderrTail where there is no traceback.
	LastLines []string `json:"stderr_tail,omitempty"`
	// Collectives is what its flight recorder or its libraries say of collectives that did not end.
	Collectives []Collective `json:"collectives,omitempty" pyjson:"optional"`

	// file is what the worker recorded; nil without an error file, and in a failure of
	// another host.
	file *errorFile
}

// New explains what was observed. It reads the error file and never fails:
// what is wrong with the file becomes part of the explanation.
func New(o Observation) *ProcessFailure {
	f := &ProcessFailure{Observation: o, FailedAt: o.Ended, Kind: failed}
	f.Signal = Signal(f.signal())
	if f.Ended.IsZero() {
		f.FailedAt = time.Now()
	}
	if o.Err != nil && o.PID == 0 {
		f.StartError = text.Clip(o.Err.Error(), maxTailLine)
		errno, _ := errors.AsType[syscall.Errno](o.Err)
		f.Errno = int(errno)
	}
	file, at := readErrorFile(o.ErrorFile), f.FailedAt
	if file != nil && (file.Note == "" || file.Message != "") {
		at = failureTime(file, o.Started, at)
	}
	if f.ErrorFile = ""; file != nil && !f.survived(file, f.FailedAt.Sub(at)) {
		f.file, f.ErrorFile, f.Note, f.Recorded, f.FailedAt = file, file.Path, file.Note, file.Message != "", at
	}
	f.Collectives = o.Waits
	if !slices.ContainsFunc(o.Waits, func(c Collective) bool { return c.Op != "" }) { // else it has printed no more
		if printed := readCollectives(o.StderrTail, o.Rank); printed != nil {
			f.Collectives = printed
		}
	}
	f.conclude()
	f.Message, f.Traceback = multiline(f.Message), multiline(f.Traceback)
	return f
}

// survived reports whether the worker has outlived the error that it had recorded that long before its end, as
// that of a job within it: at the end of stderr is the traceback of another one, which ended it.
func (f *ProcessFailure) survived(file *errorFile, before time.Duration) bool {
	if before <= time.Second || f.ExitCode != 1 {
		return false
	}
	t, ok := lift(f.StderrTail, f.ExitCode)
	said, _, _ := strings.Cut(strings.TrimSpace(file.Message), "\n")
	return ok && t.Kind == python && t.Last && strings.HasSuffix(t.Text, t.said) && !t.harmless &&
		!strings.Contains(t.Text, said)
}

// LostPeer says that another worker's death explains the failure: a connection to that
// one broke, or it did not turn up. It is the root cause only where nothing else failed.
func (f *ProcessFailure) LostPeer() bool { return f.Kind == lostPeer }

// Stopped says that the worker ended since the agent stopped it.
func (f *ProcessFailure) Stopped() bool { return f.Kind == stopped }

// signal is the signal of which the worker died, or 0.
func (f *ProcessFailure) signal() syscall.Signal { return syscall.Signal(max(0, -f.ExitCode)) }

// Where says which worker it is: "rank 1 (local_rank 1, pid 123) on host h". The root cause of a
// report that does not know it is no single worker.
func (f *ProcessFailure) Where() string {
	s, end := fmt.Sprintf("rank %d (local_rank %d", f.Rank, f.LocalRank), ")"
	if f.Rank < 0 {
		s, end = fmt.Sprintf("local rank %d", f.LocalRank), ""
	}
	if f.PID > 0 {
		s += fmt.Sprintf(", pid %d", f.PID)
	}
	s += end
	if f.Root && strings.HasPrefix(f.TimerExpired, UnknownPrefix) {
		s = "the workers"
	}
	if f.Host != "" {
		s += " on host " + oneLine(f.Host, maxName)
	}
	return s
}

// Error is Where and Cause, so that a failure can be passed on as an error.
func (f *ProcessFailure) Error() string { return f.Where() + ": " + f.Cause }

// Beside is Error in a report whose root cause says what a hang is.
func (f *ProcessFailure) Beside(root *ProcessFailure) string {
	const hung = "missed a deadline: " + HangPrefix
	if strings.HasPrefix(f.Cause, hung) && strings.HasPrefix(root.Cause, hung) {
		return f.Where() + ": hung as well; " + f.Cause[strings.LastIndex(f.Cause, "; ")+len("; "):]
	}
	return f.Error()
}

// ErrorFileData is the error file's content as JSON in Python's spelling,
// and {"message": "<NONE>"} where there is none. An oversized one is cut down
// to its message and the end of its traceback.
// Source: ProcessFailure.error_file_data.
func (f *ProcessFailure) ErrorFileData() []byte {
	if !f.file.sound() {
		data := pyjson.Dict(pyjson.Member{Key: "message", Value: pyjson.Str("<NONE>")})
		if f.ExitCode >= 0 && !f.Stopped() {
			data.Set("errorTraits", pyjson.Dict(
				pyjson.Member{Key: "category", Value: pyjson.Str("system_terminated_error")},
				pyjson.Member{Key: "retryability", Value: pyjson.Str("False")}))
		}
		return data.Append(nil)
	}
	if b := f.file.data.Append(nil); len(b) <= maxTraceback {
		return b
	}
	callstack := boundTraceback(f.file.Callstack, maxTraceback)
	return errorData(oneLine(f.file.Message, maxCause), callstack, f.FailedAt).Append(nil)
}

// failureTime is when the error that a file tells of happened. The file's own
// time has only whole seconds and its mtime may come from another clock (NFS), so
// each is checked against the other and against the life of the process.
func failureTime(file *errorFile, started, ended time.Time) time.Time {
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
		// Somewhen in that second: its end, so that a rounded time does not beat an exact one.
		return earlier(said.Add(time.Second - 1))
	}
	return ended
}
