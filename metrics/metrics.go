// Package metrics counts what the agent does, for machines.
//
// A Stream publishes named integers, as TorchElastic does, to a Handler. The
// null handler, the default, drops them; the console handler prints torch's
// lines; a Job keeps them in a Registry under names and units that Prometheus
// expects, along with what torch has no metric for. The Registry writes the text
// format itself; serving it over HTTP is package health.
//
// Source: torch/distributed/elastic/metrics/api.py.
package metrics

import (
	"io"
	"strconv"
	"sync"
	"time"
)

// Group is that of the agent's metrics.
const Group = "torchelastic"

// Names of the steps that the agent times; see Stream.Took.
const (
	Run               = "SimpleElasticAgent.run"
	StepRendezvous    = "SimpleElasticAgent._rendezvous"
	AssignWorkerRanks = "SimpleElasticAgent._assign_worker_ranks"
	InitializeWorkers = "SimpleElasticAgent._initialize_workers"
	RestartWorkers    = "SimpleElasticAgent._restart_workers"
	StartWorkers      = "LocalElasticAgent._start_workers"
	StopWorkers       = "LocalElasticAgent._stop_workers"
	MonitorWorkers    = "LocalElasticAgent._monitor_workers"
)

// A Metric is one published value.
// Source: MetricData.
type Metric struct {
	Time  time.Time
	Group string
	Name  string
	Value int64
	// Elapsed is what a ".duration.ms" has as whole milliseconds; 0 for others.
	Elapsed time.Duration
}

// A Handler takes metrics. Emit does not keep the agent waiting and may be
// called concurrently.
type Handler interface {
	Emit(Metric)
}

type null struct{}

func (null) Emit(Metric) {}

// Null is a handler that drops everything.
var Null Handler = null{}

// Multi is a handler that hands every metric to each of the handlers. Those that
// are nil or Null are left out; without any it is Null.
func Multi(handlers ...Handler) Handler {
	var all multi
	for _, h := range handlers {
		if h != nil && h != Null {
			all = append(all, h)
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

type multi []Handler

func (all multi) Emit(m Metric) {
	for _, h := range all {
		h.Emit(m)
	}
}

// Console is a handler that prints "[<unix time>][<group>]: <name>=<value>"
// lines to w, each with one Write.
func Console(w io.Writer) Handler { return &console{w: w} }

type console struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

func (c *console) Emit(m Metric) {
	line := make([]byte, 0, 128)
	line = append(line, '[')
	line = strconv.AppendFloat(line, float64(m.Time.UnixMicro())/1e6, 'f', 6, 64)
	line = append(line, "]["...)
	line = append(line, m.Group...)
	line = append(line, "]: "...)
	line = append(line, m.Name...)
	line = append(line, '=')
	line = strconv.AppendInt(line, m.Value, 10)
	line = append(line, '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Write(line) // a console that is gone is no reason to stop a job
}

// A Stream publishes the metrics of one group. The zero Stream drops everything.
// Source: MetricStream.
type Stream struct {
	Group   string // default Group
	Handler Handler
}

// Put publishes one value.
// Source: put_metric.
func (s Stream) Put(name string, value int64) {
	if s.silent() {
		return
	}
	group := s.Group
	if group == "" {
		group = Group
	}
	s.Handler.Emit(Metric{Time: time.Now(), Group: group, Name: name, Value: value})
}

// silent says that nobody listens, so that nothing need be said.
func (s Stream) silent() bool { return s.Handler == nil || s.Handler == Null }

// Took publishes the outcome of a step that took d: <name>.success or
// <name>.failure, and <name>.duration.ms.
// Source: the prof decorator.
func (s Stream) Took(name string, d time.Duration, err error) {
	if s.silent() {
		return
	}
	outcome := ".success"
	if err != nil {
		outcome = ".failure"
	}
	s.Put(name+outcome, 1)
	group := s.Group
	if group == "" {
		group = Group
	}
	s.Handler.Emit(Metric{Time: time.Now(), Group: group, Name: name + ".duration.ms", Value: d.Milliseconds(), Elapsed: d})
}

// Tick publishes what the agent finds when it looks at its workers: how many
// restarts are left and the group's state, such as "HEALTHY".
func (s Stream) Tick(role string, remaining int, state string) {
	if s.silent() {
		return
	}
	s.Put("workers."+role+".remaining_restarts", int64(remaining))
	s.Put("workers."+role+"."+lower(state), 1)
}

// Summary publishes how a run went once it has ended: its flakiness and one
// run_ counter.
// Source: SimpleElasticAgent._record_metrics and _record_flakiness_metric.
func (s Stream) Summary(role string, failed bool, maxRestarts, remaining int) {
	if s.silent() {
		return
	}
	s.Put("workers."+role+".flakiness", Flakiness(failed, maxRestarts, remaining))
	retried := remaining < maxRestarts
	for _, m := range [...]struct {
		name string
		is   bool
	}{
		{"run_total", true},
		{"run_success_with_retries", !failed && retried},
		{"run_success_no_retries", !failed && !retried},
		{"run_failed_with_retries", failed && retried},
		{"run_failed_no_retries", failed && !retried},
	} {
		value := int64(0)
		if m.is {
			value = 1
		}
		s.Put("workers."+role+"."+m.name, value)
	}
}

// Flakiness is the share of restarts used, in percent: 0 for a run that needed
// none, 100 for one that failed.
func Flakiness(failed bool, maxRestarts, remaining int) int64 {
	if failed {
		return 100
	}
	return int64(100 - 100*float64(remaining+1)/float64(maxRestarts+1))
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
