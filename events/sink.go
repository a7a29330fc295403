package events

import (
	"fmt"
	"io"
	"sync"
)

// A Sink takes events. Record does not keep the agent waiting and may be called
// concurrently.
type Sink interface {
	Record(Event)
}

// A Line is an event of another kind than Event, with a line of its own: RdzvEvent,
// AttemptEvent, PreemptedEvent.
type Line interface {
	// Append appends the event as one JSON object, without a newline.
	Append(dst []byte) []byte
}

// A LineSink is a Sink that takes Lines, too.
type LineSink interface {
	Sink
	RecordLine(Line)
}

// RecordLine hands e to a sink that wants it. Others get nothing, such as the
// console, which prints what torchrun prints.
func RecordLine(s Sink, e Line) {
	if s, ok := s.(LineSink); ok {
		s.RecordLine(e)
	}
}

type null struct{}

func (null) Record(Event) {}

// Null is a sink that drops everything.
var Null Sink = null{}

// Console is a sink that prints each event as one line of JSON to w, with one
// Write.
func Console(w io.Writer) Sink { return &console{w: w} }

type console struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

func (c *console) Record(e Event) {
	line := append(e.Append(nil), '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Write(line) // a console that is gone is no reason to stop a job
}

// Multi is a sink that hands every event to each of the sinks. Those that are nil
// or Null are left out; without any it is Null.
func Multi(sinks ...Sink) Sink {
	var all multi
	for _, s := range sinks {
		if s != nil && s != Null {
			all = append(all, s)
		}
	}
	switch len(all) {
	case 0:
		return Null
	case 1:
		return all[0]
	}
	return all
}

type multi []Sink

func (all multi) Record(e Event) {
	for _, s := range all {
		s.Record(e)
	}
}

func (all multi) RecordLine(e Line) {
	for _, s := range all {
		RecordLine(s, e)
	}
}

// Names of event log handlers.
// Source: get_logging_handler in elastic/events/handlers.py.
const (
	NameNull              = "null"
	NameConsole           = "console"
	NameDynamicRendezvous = "dynamic_rendezvous" // torch's own name for one more null
	NameFile              = "file"               // ours
)

// Names are all names that CheckName accepts.
var names = [...]string{NameNull, NameConsole, NameDynamicRendezvous, NameFile}

// CheckName says whether --event-log-handler may have this name; "" means
// NameNull. The error is an *UnknownError.
func CheckName(name string) error {
	if name == "" {
		return nil
	}
	for _, n := range names {
		if n == name {
			return nil
		}
	}
	return &UnknownError{Name: name}
}

// New returns the sink that --event-log-handler names, if it needs no more than
// a console: NameNull (also ""), NameConsole, which prints to w, or
// NameDynamicRendezvous. OpenFile is what NameFile stands for. The error for
// others is an *UnknownError.
func New(name string, w io.Writer) (Sink, error) {
	switch name {
	case "", NameNull, NameDynamicRendezvous:
		return Null, nil
	case NameConsole:
		return Console(w), nil
	}
	return nil, &UnknownError{Name: name}
}

// An UnknownError is the error for a handler that is not built in.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("event log handler %q is not known: want null, console (JSON lines on stderr), dynamic_rendezvous (as null) or file; "+
		"handlers registered in Python cannot be loaded, so read the JSON lines of console or file instead", e.Name)
}
