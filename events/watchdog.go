package events

import (
	"math"
	"strconv"

	"github.com/muster-run/muster/internal/pyjson"
	"github.com/muster-run/muster/timer"
)

// Watchdog turns e, which says what all events of the agent have in common, into
// an event of the watchdog, which has one of timer's names; r is nil for its start and end.
// Source: LocalElasticAgent._log_watchdog_event.
func Watchdog(e Event, name string, r *timer.Request) Event {
	e.Name, e.Source, e.State = name, Agent, Running
	e.Inner = []Field{{"watchdog_event", name}}
	if r != nil {
		e.Inner = append(e.Inner,
			Field{"worker_pid", strconv.Itoa(r.PID)},
			Field{"scope_id", r.ScopeID},
			Field{"expiration_time", repr(r.ExpirationTime)},
			Field{"signal", strconv.Itoa(int(r.Signal))})
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
