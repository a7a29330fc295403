package timer

import (
	"errors"
	"fmt"
	"math"
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
	// ExpirationTime is in seconds since 1970 UTC. A negative one releases the
	// timer; +Inf and NaN never come.
	ExpirationTime float64
	// Signal is what the worker gets at that time. Zero or less: the expiry is
	// reported and the worker lives on.
	Signal syscall.Signal
}

// release is the expiration time that clients release with.
const release = -1

// IsRelease reports whether r releases its timer.
func (r Request) IsRelease() bool { return r.ExpirationTime < 0 }

// Deadline returns the time at which r expires. It is the zero time if that never
// happens, for releases too.
func (r Request) Deadline() time.Time {
	if r.IsRelease() || !(r.ExpirationTime < maxSeconds) {
		return time.Time{}
	}
	whole, part := math.Modf(r.ExpirationTime)
	return time.Unix(int64(whole), int64(part*1e9))
}

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
	if r.ExpirationTime == release {
		to = append(to, "-1"...) // Python releases with an integer
	} else {
		to = pyjson.Float(r.ExpirationTime).Append(to)
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

// acquisition checks what a client acquires. A time before 1970 is long past, and its
// negative number would release.
func acquisition(t time.Time) (float64, error) {
	if t.IsZero() {
		return 0, fmt.Errorf("%w: no expiration", ErrInvalid)
	}
	return max(seconds(t), 0), nil
}

// seconds converts a time to what the wire carries.
func seconds(t time.Time) float64 {
	return float64(t.Unix()) + float64(t.Nanosecond())/1e9
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
