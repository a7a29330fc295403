// Package metrics counts what the agent does, for machines.
//
// An Observer publishes named integers, as TorchElastic does, to Handlers: to Console,
// which prints torch's lines, or to the caller's own. A Job keeps figures for Prometheus,
// under names and units that are usual there, along with what torch has no metric for,
// and writes them in the text format; serving that over HTTP is package health.
//
// Source: torch/distributed/elastic/metrics/api.py.
package metrics

import (
	"cmp"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// A Metric is one published value.
// Source: MetricData.
type Metric struct {
	Time  time.Time
	Group string // "torchelastic"
	// Name is torch's: "<step>.success", "<step>.failure" or "<step>.duration.ms" of the
	// agent's steps, such as "SimpleElasticAgent._rendezvous"; or "workers.<role>.<what>".
	Name  string
	Value int64
}

// A Handler takes metrics. Emit does not keep the agent waiting and may be
// called concurrently.
type Handler interface {
	Emit(Metric)
}

// Console is a handler that prints "[<unix time>][<group>]: <name>=<value>"
// lines to w, each with one Write. A nil w is os.Stdout.
func Console(w io.Writer) Handler { return &console{w: cmp.Or[io.Writer](w, os.Stdout)} }

type console struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

func (c *console) Emit(m Metric) {
	line := append(make([]byte, 0, 128), '[')
	line = strconv.AppendFloat(line, float64(m.Time.UnixMicro())/1e6, 'f', 6, 64)
	line = append(line, "]["+m.Group+"]: "+m.Name+"="...)
	line = append(strconv.AppendInt(line, m.Value, 10), '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Write(line) // a console that is gone is no reason to stop a job
}
