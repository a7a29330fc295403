package events

import (
	"math"
	"strconv"

	"github.com/muster-run/muster/internal/pyjson"
)

// Names of the watchdog's events.
// Source: FileTimerServer in elastic/timer/file_based_local_timer.py.
const (
	WatchdogStarted   = "watchdog started"
	WatchdogStopped   = "watchdog stopped"
	TimerExpired      = "timer expired"
	KillWorkerProcess = "kill worker process"
)

// A Timer is the request that an event of the watchdog is about.
type Timer struct {
	PID        int // of the worker
	ScopeID    string
	Expiration float64 // seconds since 1970
	Signal     int     // what the worker gets, or not if it is not positive
}

// Watchdog turns e, which says what all events of the agent have in common, into
// an event of the watchdog; t is nil for its start and end.
// Source: LocalElasticAgent._log_watchdog_event.
func Watchdog(e Event, name string, t *Timer) Event {
	e.Name, e.Source, e.State = name, Agent, Running
	e.Inner = []Field{{"watchdog_event", name}}
	if t != nil {
		e.Inner = append(e.Inner,
			Field{"worker_pid", strconv.Itoa(t.PID)},
			Field{"scope_id", t.ScopeID},
			Field{"expiration_time", repr(t.Expiration)},
			Field{"signal", strconv.Itoa(t.Signal)})
	}
	return e
}

// repr is how Python's str prints a float.
func repr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return pyjson.Float(f).Text
}
