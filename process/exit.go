package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
)

// An Exit says how one worker ended.
// Source: ProcessFailure and RunProcsResult in multiprocessing.
type Exit struct {
	LocalRank, PID int
	// Code is 0 … 255, or -N if signal N ended the worker.
	Code       int
	CoreDumped bool
	// Time is when the end was seen, in the order of the ends: with a monotonic
	// reading, some tens of microseconds after it happened.
	Time time.Time
	// StoppedBy is the signal that the group had sent to the worker before it
	// ended; zero if it ended by itself. A worker that had to be killed after its
	// grace keeps the signal that it did not heed.
	StoppedBy syscall.Signal
	// OOMKilled holds the evidence that the kernel killed the worker for lack of
	// memory; empty otherwise.
	OOMKilled string
	// Uninterruptible is set for the worker that made the group stop because it
	// was in uninterruptible sleep for too long: how long, and where in the
	// kernel.
	Uninterruptible string
	// Abandoned is set for a worker that did not end after SIGKILL: where in the
	// kernel it waits. Code is then -9 although it has not ended.
	Abandoned string
	// ErrorFile is the worker's TORCHELASTIC_ERROR_FILE, which may not exist.
	ErrorFile string
	// UserTime and SystemTime are the CPU time of the worker and the processes
	// that it waited for; MaxRSS is the most memory that one of them had resident,
	// in bytes. Linux counts what this program had when it forked the worker.
	UserTime, SystemTime time.Duration
	MaxRSS               int64
	// Value is what a function worker returned, Err a *FuncError if it failed.
	Value []byte
	Err   error
}

// Observation is what the Exit says of a worker that failed, for failure.New. It lacks
// what the caller knows: Rank, Started, Host, Entrypoint, and the end of its stderr.
func (e Exit) Observation() failure.Observation {
	o := failure.Observation{
		LocalRank: e.LocalRank, PID: e.PID, ExitCode: e.Code, CoreDumped: e.CoreDumped, Ended: e.Time,
		StoppedBy: failure.Signal(e.StoppedBy),
		OOM:       e.OOMKilled, Abandoned: e.Abandoned, ErrorFile: e.ErrorFile, Evidence: failure.Evidence{Err: e.Err},
	}
	if f, ok := errors.AsType[*FuncError](e.Err); ok {
		o.Stack = f.Stack
	}
	return o
}

// Decode reads the value of a function made with JSON. Its error is that of a worker that
// failed.
func (e Exit) Decode(to any) error {
	if e.Err != nil {
		return e.Err
	}
	if e.Code != 0 {
		return fmt.Errorf("worker %d ended with %d", e.LocalRank, e.Code)
	}
	if err := json.Unmarshal(e.Value, to); err != nil {
		return fmt.Errorf("value of worker %d: %w", e.LocalRank, err)
	}
	return nil
}

// failed reports whether the worker counts among the failures.
func (e *Exit) failed() bool {
	return e.Code != 0 || e.Abandoned != "" || e.Uninterruptible != ""
}

// A Result is how a group ended.
// Source: RunProcsResult in multiprocessing/api.py.
type Result struct {
	// Exits holds every worker's end, Failures those that did not exit 0, by
	// local rank.
	Exits, Failures map[int]Exit
	// Stdouts and Stderrs are the workers' log files; empty where there is none.
	Stdouts, Stderrs map[int]string
	// Uninterruptible says that a worker is or was stuck in the kernel, so that
	// the host may not be fit for another attempt.
	Uninterruptible bool
}

// IsFailed reports whether any worker failed.
func (r *Result) IsFailed() bool { return len(r.Failures) > 0 }

// ReturnValues returns what function workers returned, by local rank.
func (r *Result) ReturnValues() map[int][]byte {
	values := make(map[int][]byte, len(r.Exits))
	for rank, exit := range r.Exits {
		values[rank] = exit.Value
	}
	return values
}

// A SignalError says that the program was told to stop by a signal.
// Source: SignalException in multiprocessing/api.py.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string {
	return fmt.Sprintf("received signal %s (%d)", failure.Signal(e.Signal), int(e.Signal))
}

// A StartError says which worker could not be started. Those with lower ranks
// have been stopped again. Err wraps a syscall.Errno where the system refused.
type StartError struct {
	LocalRank int
	Path      string // the program that was to run; as configured if it was not found
	Err       error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start worker %d: %s: %v", e.LocalRank, e.Path, e.Err)
}

func (e *StartError) Unwrap() error { return e.Err }
