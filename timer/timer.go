package timer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/format/pyjson"
)

// A Request acquires or releases a timer.
// Source: FileTimerRequest in file_based_local_timer.py.
type Request struct {
	// PID is the worker that the timer is for, as the server's pid namespace
	// numbers it.
	PID int
	// ScopeID names one of its timers.
	ScopeID string
	// ExpirationTime is the deadline. One before 1970, such as the zero time, releases
	// the timer; one after the year 9999 never comes. On the wire it is a float of seconds.
	ExpirationTime time.Time
	// Signal is what the worker gets at that time. Zero or less: the expiry is
	// reported and the worker lives on.
	Signal syscall.Signal
}

// IsRelease reports whether r releases its timer.
func (r Request) IsRelease() bool { return r.ExpirationTime.Unix() < 0 }

// maxSeconds is the end of the year 9999; what expires later never does.
const maxSeconds = 253402300800

// String returns the request as Python's to_json writes it.
func (r Request) String() string { return string(r.AppendJSON(nil)) }

// MarshalJSON makes what AppendJSON does. Infinity is not JSON to package encoding/json.
func (r Request) MarshalJSON() ([]byte, error) { return r.AppendJSON(nil), nil }

// AppendJSON appends the request as Python's to_json writes it.
func (r Request) AppendJSON(to []byte) []byte {
	to = append(to, `{"version": 1, "pid": `...)
	to = strconv.AppendInt(to, int64(r.PID), 10)
	to = append(to, `, "scope_id": `...)
	to = pyjson.AppendString(to, r.ScopeID)
	to = append(to, `, "expiration_time": `...)
	if r.IsRelease() {
		to = append(to, "-1"...) // Python releases with an integer
	} else {
		to = pyjson.Float(r.Seconds()).Append(to)
	}
	to = append(to, `, "signal": `...)
	to = strconv.AppendInt(to, int64(r.Signal), 10)
	return append(to, '}')
}

// A Client acquires and releases timers of the process that holds it. Its methods
// may be called concurrently.
// Source: TimerClient in api.py.
type Client interface {
	// Acquire starts the timer scopeID, or moves it if it runs.
	Acquire(scopeID string, expiration time.Time) error
	// Release ends the timer. An unknown one is not an error.
	Release(scopeID string) error
}

// acquisition makes the request of a client that acquires a timer. A time before 1970 is
// long past, and would release.
func acquisition(pid int, scopeID string, t time.Time, sig syscall.Signal) (Request, error) {
	sig = cmp.Or(sig, syscall.SIGKILL)
	switch {
	case t.IsZero():
		return Request{}, fmt.Errorf("%w: no expiration", ErrInvalid)
	case pid < 0:
		return Request{}, fmt.Errorf("%w: PID %d: want a process number, or 0 for this process", ErrInvalid, pid)
	case sig > maxSignal:
		return Request{}, fmt.Errorf("%w: signal %d: want at most %d", ErrInvalid, int(sig), maxSignal)
	case t.Unix() < 0:
		t = time.Unix(0, 0)
	}
	return Request{PID: cmp.Or(pid, os.Getpid()), ScopeID: scopeID, ExpirationTime: t, Signal: sig}, nil
}

// Seconds is the deadline in seconds since 1970, as Python and the wire have it.
func (r Request) Seconds() float64 { return seconds(r.ExpirationTime) }

func seconds(t time.Time) float64 {
	return float64(t.Unix()) + float64(t.Nanosecond())/1e9
}

// fromSeconds converts a time of the wire: a negative one releases, and Infinity and NaN never come.
func fromSeconds(f float64) time.Time {
	switch {
	case f < 0:
		return time.Time{}
	case !(f < maxSeconds):
		return time.Unix(maxSeconds, 0)
	}
	whole, part := math.Modf(f)
	return time.Unix(int64(whole), int64(math.Round(part*1e9)))
}

// Reasons for which a server refuses a request. A client that gets one of them gains nothing
// by trying again at once.
var (
	// ErrNotOwned is the reason when Config.Owns does not know the process.
	ErrNotOwned = errors.New("not a process of this server")
	// ErrTooMany is the reason when Config.MaxTimers run.
	ErrTooMany = errors.New("too many timers")
	// ErrInvalid is the reason when a field makes no sense.
	ErrInvalid = errors.New("invalid request")
)

// errNoProcess is the reason when the process does not exist (any more).
var errNoProcess = &wordedError{"no such process", syscall.ESRCH}

// A refusal says which request was refused and why.
type refusal struct {
	request Request
	reason  error
}

func (e *refusal) Error() string {
	return fmt.Sprintf("timer %.64q of process %d: %v", e.request.ScopeID, e.request.PID, e.reason)
}

func (e *refusal) Unwrap() error { return e.reason }

// A wordedError has words of its own for a reason that programs know.
type wordedError struct {
	text   string
	reason error
}

func (e *wordedError) Error() string { return e.text }
func (e *wordedError) Unwrap() error { return e.reason }
