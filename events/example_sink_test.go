package events_test

import (
	"fmt"
	"time"

	"github.com/muster-run/muster/events"
)

// A Sink of the program's own, for launch.Records.Events.
type printer struct{}

func (printer) Record(line events.Line) {
	switch e := line.(type) {
	case events.Event:
		fmt.Println(e.Source(), e.State)
	case events.RdzvEvent:
		fmt.Println(e.Name, e.NodeState)
	}
}

func ExampleSink() {
	var sink events.Sink = printer{}
	sink.Record(events.Event{State: "SUCCEEDED", Time: time.Unix(1.7e9, 0)})
	sink.Record(events.RdzvEvent{Name: "rendezvous.Next", NodeState: "RUNNING"})
	// Output:
	// AGENT SUCCEEDED
	// rendezvous.Next RUNNING
}
